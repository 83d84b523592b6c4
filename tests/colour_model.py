"""Exports a semantic segmentation model in PaddleSeg's form. Started as a program of its own, so
that the test process never imports Paddle:  python -m tests.colour_model DIRECTORY
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import paddle
from paddle import nn
from paddle.static import InputSpec

from paddlepool.contracts.tensors import TensorSpec
from tests.model_files import write_config, write_manifest, write_version

SPECS = (
    (TensorSpec("x", "float32", (-1, 3, -1, -1)),),
    (TensorSpec("labels", "int32", (-1, -1, -1)),),
)
INFERENCE_YML = """
Global: {model_name: Colours-Seg}
Deploy:
  transforms:
  - {type: Resize, target_size: [64, 64], keep_ratio: false, size_divisor: 32}
  - {type: Normalize, mean: 0.5, std: 0.5}
"""


class Colours(nn.Layer):
    """float32 x [N,3,H,W] from -1 to 1 to int32 labels [N,H,W]: 0 dark, 1 red, 2 green, 3 blue."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2D(3, 4, 1)
        weights = np.concatenate([np.zeros((1, 3)), np.eye(3)]).astype(np.float32)
        self.convolution.weight.set_value(weights[:, :, None, None])
        self.convolution.bias.set_value(np.zeros(4, np.float32))

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return paddle.argmax(self.convolution(x), axis=1).astype("int32")


def main(repository: Path) -> None:
    network = Colours()
    network.eval()
    x = np.random.default_rng(5).uniform(-1, 1, (1, 3, 64, 64)).astype(np.float32)
    with tempfile.TemporaryDirectory() as scratch:
        spec = InputSpec([None, 3, None, None], "float32", "x")
        paddle.jit.save(network, f"{scratch}/inference", input_spec=[spec])
        program, params = (
            (Path(scratch) / f"inference.{suffix}").read_bytes() for suffix in ("json", "pdiparams")
        )
    directory = write_version(
        repository / "colours" / "1",
        program=program,
        params=params,
        specs=SPECS,
        inputs={"x": x},
        outputs={"labels": network(paddle.to_tensor(x)).numpy()},
    )
    (directory / "inference.yml").write_text(INFERENCE_YML, encoding="utf-8")
    write_manifest(directory, SPECS)
    write_config(repository / "colours", 'pipeline = "segment"\n')


if __name__ == "__main__":
    main(Path(sys.argv[1]))
