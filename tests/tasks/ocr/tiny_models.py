"""Exports a detector and a recogniser of bars. Started as a program of its own, so that the test
process never imports Paddle:  python -m tests.tasks.ocr.tiny_models DIRECTORY
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
from tests.tasks.ocr.pages import DETECTOR, RECOGNISER, write_ocr

GROUP = """
[dynamic_batching]
max_batch_size = 4
max_queue_size = 64
[[instance_group]]
name = "onednn"
backend = "paddle_inference"
options = { onednn = true }
"""


class Tiny(nn.Layer):
    """A network with one weight: a program without weights cannot be saved."""

    def __init__(self) -> None:
        super().__init__()
        one = nn.initializer.Constant(1.0)
        self.one = self.create_parameter([1], default_initializer=one)


class Detector(Tiny):
    """A map that is 1 where the page is dark."""

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return nn.functional.sigmoid(-4 * self.one * x.mean(1, keepdim=True))


class Recogniser(Tiny):
    """A step for eight columns: blank if they are bright, "a" if they are red, "b" if blue."""

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        blue, green, red = nn.functional.avg_pool2d(x, (48, 8), (48, 8)).squeeze(2).unbind(1)
        dark, redness = -20 * green - 2 * self.one, 40 * (red - blue)
        classes = [0 * dark, dark + redness, dark - redness, 0 * dark - 50]
        return nn.functional.softmax(paddle.stack(classes, -1), -1)


def write(model: Path, network: nn.Layer, height: int | None, text: str) -> None:
    network.eval()
    x = np.linspace(-1, 1, 2 * 3 * 48 * 64, dtype=np.float32).reshape(2, 3, 48, 64)
    y = network(paddle.to_tensor(x)).numpy()
    with tempfile.TemporaryDirectory() as scratch:
        into = Path(scratch) / "inference"
        spec = InputSpec([None, 3, height, None], "float32", "x")
        paddle.jit.save(network, str(into), input_spec=[spec])
        program, params = (into.with_suffix(s) for s in (".json", ".pdiparams"))
        shapes = (-1, 3, height or -1, -1), (-1, *(-1 if n != 4 else n for n in y.shape[1:]))
        if y.ndim == 4:
            shapes = shapes[0], (-1, 1, -1, -1)
        specs = (
            (TensorSpec("x", "float32", shapes[0]),),
            (TensorSpec("y", "float32", shapes[1]),),
        )
        directory = write_version(
            model / "1",
            program=program.read_bytes(),
            params=params.read_bytes(),
            specs=specs,
            inputs={"x": x},
            outputs={"y": y},
        )
    (directory / "inference.yml").write_text(text, "utf-8")
    write_manifest(directory, specs)
    write_config(model, GROUP)


def main(repository: Path) -> None:
    write(repository / "detector", Detector(), None, DETECTOR)
    write(repository / "recogniser", Recogniser(), 48, RECOGNISER)
    write_ocr(repository)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
