"""Writes programs in forms that other versions of Paddle wrote. Started as a program of its own:

    python -m tests.making.export.old_programs DIRECTORY

`separate` and `combined` are of Paddle 1, `uneven` has a LoD input, `scaled` resizes by a factor,
and `unchanged` returns its input.
"""

import shutil
import sys
from pathlib import Path

import paddle
from paddle.pir_utils import OldIrGuard
from paddle.static import InputSpec, io


class Scaled(paddle.nn.Layer):
    def forward(self, image: paddle.Tensor) -> paddle.Tensor:
        return paddle.nn.functional.interpolate(image, scale_factor=2)


class Unchanged(paddle.nn.Layer):
    def forward(self, x: paddle.Tensor) -> tuple[paddle.Tensor, ...]:
        return x, x * 2


def save(root: Path, name: str, lod_level: int, executor: paddle.static.Executor) -> paddle.Tensor:
    program, start = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(program, start):
        image = paddle.static.data(name, [None, 3, 8, 8], "float32", lod_level)
        scores = paddle.static.nn.fc(paddle.flatten(image, 1), 6, activation="softmax")
    executor.run(start)
    prefix = str(root / "inference")
    paddle.static.save_inference_model(prefix, [image], [scores], executor, program=program)
    return paddle.static.load_inference_model(prefix, executor)[0]


def main(root: Path) -> None:
    for name, network in (("scaled", Scaled()), ("unchanged", Unchanged())):
        specs = [InputSpec([None, 3, 8, 8], "float32", "x")]
        paddle.jit.save(network, str(root / name / "model"), input_spec=specs)
    with OldIrGuard():
        paddle.enable_static()
        executor = paddle.static.Executor(paddle.CPUPlace())
        save(root / "uneven", "words", 1, executor)
        program = save(root / "saved", "image", 0, executor)
        for name in ("separate", "combined"):
            (root / name).mkdir()
            shutil.copy(root / "saved" / "inference.pdmodel", root / name / "__model__")
        shutil.copy(root / "saved" / "inference.pdiparams", root / "combined" / "__params__")
        io.save_vars(executor, str(root / "separate"), program, predicate=io.is_persistable)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
