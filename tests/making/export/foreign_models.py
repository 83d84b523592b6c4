"""Exports programs that nobody here wrote, as their users would. Started as a program of its own,
so that the test process never imports Paddle:

    python -m tests.making.export.foreign_models DIRECTORY

Each model gets `DIRECTORY/<name>/1/<any base name>.*` and `DIRECTORY/<name>.npz` with `input.…`
and, in the order of the program, `output.<n>`: Paddle's own results, from the layer where there is
one and from `paddle.inference` for the programs in the form of Paddle 2. Models under
`DIRECTORY/.unfit` cannot be served.
"""

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import inference, nn
from paddle.pir_utils import OldIrGuard
from paddle.static import InputSpec

from paddlepool.contracts.tensors import DTYPES

LEGACY = Path(__file__).parent / "legacy"


class Mixed(nn.Layer):
    """Three inputs of three dtypes; outputs of three dtypes, one of them without a batch axis."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, 4, padding_idx=0)
        self.linear = nn.Linear(4, 3)

    def forward(
        self, tokens: paddle.Tensor, mask: paddle.Tensor, scale: paddle.Tensor
    ) -> tuple[paddle.Tensor, ...]:
        kept = self.embedding(tokens) * mask.astype("float32").unsqueeze(-1)
        scores = self.linear(kept.sum(1)) * scale.astype("float32")
        return scores, scores.argmax(1), scores > 0, scores.astype("float64").mean()


class Centred(nn.Layer):
    """Each row minus the mean of all rows: what no server may batch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, rows: paddle.Tensor) -> paddle.Tensor:
        return self.linear(rows - rows.mean(0, keepdim=True))


class Found(nn.Layer):
    """Where a row is beyond 10, which it may be nowhere, and the rows themselves, projected."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, rows: paddle.Tensor) -> tuple[paddle.Tensor, ...]:
        return paddle.nonzero(rows > 10), self.linear(rows)


class Doubled(nn.Layer):
    """A network without parameters."""

    def forward(self, rows: paddle.Tensor) -> paddle.Tensor:
        return rows * 2 + 1


class Dtypes(nn.Layer):
    """Takes every dtype that is served, and gives every one of them."""

    def forward(
        self,
        a: paddle.Tensor, b: paddle.Tensor, c: paddle.Tensor, d: paddle.Tensor,
        e: paddle.Tensor, f: paddle.Tensor, g: paddle.Tensor, h: paddle.Tensor,
    ) -> tuple[paddle.Tensor, ...]:  # fmt: skip
        total = paddle.add_n([part.astype("float32") for part in (a, b, c, d, e, f, g, h)])
        return tuple(total.astype(dtype) for dtype in DTYPES)


class Masked(nn.Layer):
    """NaN in place of what is not positive: Paddle saves such a constant and cannot load it."""

    def forward(self, rows: paddle.Tensor) -> paddle.Tensor:
        return paddle.where(rows > 0, rows, paddle.full([2], float("nan")))


class Constant(nn.Layer):
    """No input at all."""

    def forward(self) -> paddle.Tensor:
        return paddle.arange(3)


class Cast(nn.Layer):
    """From any dtype to another."""

    def __init__(self, dtype: str) -> None:
        super().__init__()
        self.dtype = dtype
        self.linear = nn.Linear(2, 2)

    def forward(self, rows: paddle.Tensor) -> paddle.Tensor:
        return self.linear(rows.astype("float32")).astype(self.dtype)


def export(
    root: Path, name: str, network: nn.Layer, base: str, specs: list[InputSpec], *feeds: np.ndarray
) -> None:
    network.eval()
    paddle.jit.save(network, str(root / name / "1" / base), input_spec=specs)
    outputs = network(*map(paddle.to_tensor, feeds))
    several = outputs if isinstance(outputs, tuple) else (outputs,)
    keep(root, name, [spec.name for spec in specs], feeds, [tensor.numpy() for tensor in several])


def keep(
    root: Path, name: str, names: list[str], feeds: tuple[Any, ...], outputs: list[Any]
) -> None:
    given = {f"input.{key}": array for key, array in zip(names, feeds, strict=True)}
    given |= {f"output.{index}": array for index, array in enumerate(outputs)}
    np.savez(root / f"{name}.npz", **given)


def export_all(root: Path) -> None:
    random = np.random.default_rng(3)
    export(
        root, "single", Doubled(), "model",
        [InputSpec([1, 3], "float32", "rows")], random.random((1, 3), dtype=np.float32),
    )  # fmt: skip
    export(
        root, "mixed", Mixed(), "inference",
        [
            InputSpec([None, None], "int64", "tokens"),
            InputSpec([None, None], "bool", "mask"),
            InputSpec([None, 1], "int32", "scale"),
        ],
        random.integers(0, 8, (2, 5)), random.random((2, 5)) > 0.3, np.array([[2], [3]], np.int32),
    )  # fmt: skip
    export(
        root, "centred", Centred(), "inference",
        [InputSpec([None, 2], "float32", "rows")], random.random((9, 2), dtype=np.float32),
    )  # fmt: skip
    export(
        root, "found", Found(), "model",
        [InputSpec([None, 2], "float32", "rows")], np.array([[1, 20], [30, 3], [4, 5]], np.float32),
    )  # fmt: skip
    export(
        root, "doubled", Doubled(), "model",
        [InputSpec([None, 3], "float32", "rows")], random.random((2, 3), dtype=np.float32),
    )  # fmt: skip
    export(
        root, "dtypes", Dtypes(), "model",
        [InputSpec([None, 2], dtype, f"given_{dtype}") for dtype in DTYPES],
        *(np.array([[1, 0], [0, 1], [0, 0]], dtype) for dtype in DTYPES),
    )  # fmt: skip
    export_static(root, "static_legacy")
    for name, taken, given in (("bfloat16", "float32", "bfloat16"), ("int16", "int16", "float32")):
        paddle.jit.save(
            Cast(given), str(root / ".unfit" / name / "1" / "model"),
            input_spec=[InputSpec([None, 2], taken, "rows")],
        )  # fmt: skip
    paddle.jit.save(
        Masked(), str(root / ".unfit" / "nan" / "1" / "model"),
        input_spec=[InputSpec([None, 2], "float32", "rows")],
    )  # fmt: skip
    paddle.jit.save(Constant(), str(root / ".unfit" / "constant" / "1" / "model"), input_spec=[])
    version = root / "legacy" / "1"
    version.mkdir(parents=True)
    for file in LEGACY.glob("model.pd*"):
        shutil.copy(file, version)
    feeds = random.random((2, 3, 8, 8), dtype=np.float32), random.integers(0, 16, (2, 6))
    keep(root, "legacy", ["image", "tokens"], feeds, run_legacy(version, feeds))


def export_static(root: Path, name: str) -> None:
    """As `paddle.static.save_inference_model` of Paddle 2 did, which drops what only gradients
    need: the second outputs of flatten, transpose, reshape and squeeze."""
    random = np.random.default_rng(8)
    feeds = random.random((2, 3, 8, 8), np.float32), random.random((2, 4), np.float32)
    version = root / name / "1"
    version.mkdir(parents=True)
    with OldIrGuard():
        paddle.enable_static()
        program, start = paddle.static.Program(), paddle.static.Program()
        with paddle.static.program_guard(program, start):
            image = paddle.static.data("image", [None, 3, 8, 8], "float32")
            extra = paddle.static.data("extra", [None, 4], "float32")
            seen = paddle.static.nn.conv2d(image, 4, 3, act="relu")
            seen = paddle.flatten(paddle.transpose(seen, [0, 2, 3, 1]), 1)
            scores = paddle.static.nn.fc(seen, 6, activation="softmax")
            given = paddle.squeeze(paddle.reshape(extra, [-1, 2, 1, 2]), 2).sum(1)
        executor = paddle.static.Executor(paddle.CPUPlace())
        executor.run(start)
        paddle.static.save_inference_model(
            str(version / "model"), [image, extra], [scores, given], executor, program=program
        )
        paddle.disable_static()
    keep(root, name, ["image", "extra"], feeds, run_legacy(version, feeds))


def run_legacy(version: Path, feeds: tuple[np.ndarray, ...]) -> list[np.ndarray]:
    config = inference.Config(str(version / "model.pdmodel"), str(version / "model.pdiparams"))
    config.disable_gpu()
    config.disable_mkldnn()
    predictor = inference.create_predictor(config)
    for name, array in zip(predictor.get_input_names(), feeds, strict=True):
        predictor.get_input_handle(name).copy_from_cpu(array)
    predictor.run()
    return [predictor.get_output_handle(n).copy_to_cpu() for n in predictor.get_output_names()]


if __name__ == "__main__":
    paddle.seed(5)
    export_all(Path(sys.argv[1]))
