"""Integers are computed exactly in OpenVINO, or refused."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from paddlepool.contracts.errors import BackendError
from paddlepool.engine.backends.onnx import open_onnxruntime, open_openvino, openvino_runtime
from paddlepool.engine.backends.openvino_integers import EXACT, check_integers, limits
from tests.engine.backends.tiny_onnx import FLOAT, INT64, opened, program

pytest.importorskip("openvino")
pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.slow

INT32, BOOL = TensorProto.INT32, TensorProto.BOOL
node = helper.make_node
HALVES = node("Split", ["x"], ["l", "r"], axis=1, num_outputs=2)


def number(value: int, dtype: Any = np.int64) -> np.ndarray[Any, Any]:
    return np.array([value], dtype)


def of_integers(*nodes: onnx.NodeProto, output: int = BOOL, **constants: Any) -> bytes:
    return program(*nodes, inputs=INT64, output=output, **constants)


WEIGHTS = np.ones((6, 2), np.int64)
CASES = {
    "equal": (of_integers(HALVES, node("Equal", ["l", "r"], ["y"])), (EXACT, False)),
    "constant": (of_integers(node("Less", ["x", "c"], ["y"]), c=number(2**30)), (EXACT, False)),
    "shifted": (
        of_integers(
            node("Add", ["x", "c"], ["s"]), node("Greater", ["s", "c"], ["y"]), c=number(100)
        ),
        (EXACT - 100, False),
    ),
    "hashed": (
        of_integers(
            node("Mul", ["x", "f"], ["s"]), node("Add", ["s", "c"], ["a"]),
            node("Mod", ["a", "m"], ["o"]), node("Cast", ["o"], ["y"], to=FLOAT),
            output=FLOAT, f=number(31), c=number(7), m=number(1000),
        ),
        ((EXACT - 7) // 31, False),
    ),
    "quotient": (
        of_integers(
            node("Div", ["x", "c"], ["q"]), node("Equal", ["q", "c"], ["y"]), c=number(3)
        ),
        (EXACT, False),
    ),
    "largest": (
        of_integers(
            node("ReduceMax", ["x", "a"], ["m"]), node("Equal", ["m", "a"], ["y"]), a=number(1)
        ),
        (EXACT, False),
    ),
    "sum": (
        of_integers(
            node("ReduceSum", ["x", "a"], ["s"]), node("Cast", ["s"], ["y"], to=FLOAT),
            output=FLOAT, a=number(1),
        ),
        (EXACT, True),
    ),
    "places": (
        of_integers(
            node("CumSum", ["x", "a"], ["s"]), node("Greater", ["s", "a"], ["y"]), a=number(1)
        ),
        (EXACT, True),
    ),
    "selected": (
        of_integers(
            node("Cast", ["x"], ["b"], to=BOOL), node("Where", ["b", "x", "c"], ["w"]),
            node("Less", ["w", "c"], ["y"]), c=number(9),
        ),
        (EXACT - 9, False),
    ),
}  # fmt: skip
"""Programs, with the limit of `x`."""


def read(made: bytes) -> Any:
    return openvino_runtime().Core().read_model(made)


@pytest.mark.parametrize("name", CASES)
def test_integers_are_exact_up_to_their_limit(name: str, tmp_path: Path) -> None:
    made, (limit, summed) = CASES[name]
    assert limits(read(made)) == ([], {"x": (limit, summed)})
    run = opened(open_openvino, made, tmp_path, "int64")
    right = opened(open_onnxruntime, made, tmp_path, "int64")
    random = np.random.default_rng(5)
    most = limit // (6 * 400 if summed else 1)
    x = random.integers(-most, most + 1, (400, 6))
    x[:, 3:] = x[:, :3] + random.integers(-1, 2, (400, 3))  # neighbours
    np.clip(x, -most, most, out=x)
    x[0, 0] = most
    np.testing.assert_array_equal(run(x), right(x))
    x[0, 0] = limit + 1
    words = "integers with the sum" if summed else "the integer"
    with pytest.raises(BackendError, match=f"'x' has {words} .*exactly up to {limit}"):
        run(x)
    x[0, 0] = -limit - 1
    with pytest.raises(BackendError, match=words):
        run(x)


@pytest.mark.parametrize(
    ("made", "kind"),
    [
        (of_integers(node("MatMul", ["x", "w"], ["y"]), output=INT64, w=WEIGHTS), "MatMul"),
        (of_integers(node("Mul", ["x", "x"], ["m"]), node("Equal", ["m", "x"], ["y"])), "Equal"),
        (
            of_integers(
                node("Add", ["x", "a"], ["s"]), node("ReduceSum", ["s", "a"], ["t"]),
                node("Cast", ["t"], ["y"], to=FLOAT), output=FLOAT, a=number(1),
            ),
            "ReduceSum",
        ),
        (
            of_integers(
                node("Add", ["x", "c"], ["s"]), node("Less", ["s", "c"], ["y"]), c=number(EXACT)
            ),
            "Less",
        ),
    ],
)  # fmt: skip
def test_what_no_limit_keeps_exact_is_refused(made: bytes, kind: str, tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=f"{kind} of integers, computed as float32"):
        opened(open_openvino, made, tmp_path, "int64")


@pytest.mark.parametrize(
    "made",
    [
        of_integers(node("Add", ["x", "c"], ["y"]), output=INT64, c=number(1)),
        of_integers(
            node("Mul", ["x", "c"], ["m"]), node("Abs", ["m"], ["y"]), output=INT64, c=number(3)
        ),
        of_integers(
            node("Mul", ["x", "c"], ["m"]), node("Equal", ["m", "c"], ["y"]), c=number(0)
        ),
        of_integers(
            node("Cast", ["x"], ["f"], to=FLOAT), node("Less", ["f", "c"], ["y"]),
            c=number(3, np.float32),
        ),
        program(
            node("Shape", ["x"], ["s"]), node("ReduceProd", ["s"], ["p"]),
            node("Mod", ["p", "c"], ["m"]), node("Equal", ["m", "c"], ["y"]),
            output=BOOL, c=number(7),
        ),
        program(
            node("Cast", ["x"], ["i"], to=INT64), node("Less", ["i", "c"], ["y"]),
            output=BOOL, c=number(7),
        ),
    ],
)  # fmt: skip
def test_exact_operators_sizes_and_floats_have_no_limit(made: bytes) -> None:
    assert limits(read(made)) == ([], {})


def test_an_empty_input_is_within_its_limit() -> None:
    check_integers({"x": np.empty((0, 3), np.int64)}, {"x": (1, False)})
