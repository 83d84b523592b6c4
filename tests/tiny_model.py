"""Exports the tiny graph that tests marked `paddle` run. Started as a program of its own, so that
the test process never imports Paddle:  python -m tests.tiny_model DIRECTORY
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import paddle
from paddle import nn
from paddle.static import InputSpec

from tests.model_files import TINY, write_config, write_version

CONFIG = """
default_group = "onednn"
[dynamic_batching]
max_batch_size = 4
max_queue_size = 64
[[instance_group]]
name = "onednn"
backend = "paddle_inference"
options = { onednn = true }
[[instance_group]]
name = "native"
backend = "paddle_inference"
start = "on_demand"
options = { onednn = false }
[[warmup]]
shapes = { image = [1, 3, 8, 8] }
"""


class Tiny(nn.Layer):
    """float32 image [N,3,H,W] to two scores and four channel means; any height and width."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2D(3, 4, 3, padding=1)
        self.classify = nn.Linear(4, 2)

    def forward(self, image: paddle.Tensor) -> tuple[paddle.Tensor, paddle.Tensor]:
        mean = nn.functional.relu(self.convolution(image)).mean([2, 3])
        return self.classify(mean), mean


def export(network: nn.Layer, into: Path) -> tuple[bytes, bytes]:
    network.eval()
    paddle.jit.save(
        network,
        str(into / "inference"),
        input_spec=[InputSpec([None, 3, None, None], "float32", "image")],
    )
    return (into / "inference.json").read_bytes(), (into / "inference.pdiparams").read_bytes()


def main(repository: Path) -> None:
    """Writes model `tiny`: version 1 is right; `other.pdiparams` beside it are other weights."""
    paddle.seed(7)
    network = Tiny()
    image = np.linspace(-1, 1, 2 * 3 * 8 * 8, dtype=np.float32).reshape(2, 3, 8, 8)
    scores, mean = (output.numpy() for output in network(paddle.to_tensor(image)))
    with tempfile.TemporaryDirectory() as scratch:
        program, params = export(network, Path(scratch))
        _, other = export(Tiny(), Path(scratch))
    write_version(
        repository / "tiny" / "1",
        program=program,
        params=params,
        specs=TINY,
        inputs={"image": image},
        outputs={"scores": scores, "mean": mean},
    )
    write_config(repository / "tiny", CONFIG)
    (repository / "other.pdiparams").write_bytes(other)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
