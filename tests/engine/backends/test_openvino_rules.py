"""Programs that OpenVINO would compute wrongly are refused by name."""

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from paddlepool.contracts.errors import BackendError
from paddlepool.engine.backends.onnx import open_onnxruntime, open_openvino
from paddlepool.engine.backends.openvino_rules import lost_axes, saturating
from tests.engine.backends.tiny_onnx import DOUBLE, FLOAT, INT64, opened, program

pytest.importorskip("openvino")
pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.slow

node = helper.make_node
WIDE = np.array([2**40], np.int64)
ENDS = np.full(2, 2**63 - 1)
TABLE = np.eye(9, dtype=np.float32)


DIVIDED = node("Div", ["x", "d"], ["q"])
AVERAGE = {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1, "count_include_pad": 1}
DIVISOR = np.full(1, 41, np.float32)
INT32, BOOL = TensorProto.INT32, TensorProto.BOOL
IN_DOUBLE = (
    node("Cast", ["x"], ["d"], to=DOUBLE),
    node("Exp", ["d"], ["e"]),
    node("Cast", ["e"], ["y"], to=FLOAT),
)


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (program(node("Relu", ["x"], ["y"]), inputs=DOUBLE, output=DOUBLE), "float64"),
        (program(*IN_DOUBLE), "float64"),
        (program(node("Add", ["x", "x"], ["y"]), inputs=INT64, output=INT64), "int64 outputs"),
        (
            program(node("Greater", ["x", "w"], ["y"]), inputs=INT64, output=BOOL, w=WIDE),
            "int64 constant",
        ),
        (
            program(node("AveragePool", ["x"], ["y"], **AVERAGE), shape=("n", 3, 6, 6)),
            "AveragePool",
        ),
        (
            program(node("ReduceLogSumExp", ["x"], ["y"], axes=[1]), opset=17),
            "ReduceLogSumExp with axes in opset 17: export with opset 18",
        ),
        (program(DIVIDED, node("Floor", ["q"], ["y"]), d=DIVISOR), "Floor of a quotient"),
        (
            program(DIVIDED, node("Cast", ["q"], ["y"], to=INT32), output=INT32, d=DIVISOR),
            "Convert of a quotient",
        ),
        (program(node("Div", ["x", "d"], ["y"]), d=DIVISOR), ""),
        (program(node("Relu", ["x"], ["y"])), ""),
        (program(node("Gather", ["t", "x"], ["y"]), inputs=INT64, t=TABLE), ""),
        (program(node("ArgMax", ["x"], ["y"], axis=1), output=INT64), ""),
        (program(node("Flatten", ["x"], ["y"]), inputs=INT64, output=INT64), ""),
        (program(node("Slice", ["x", "b", "e"], ["y"]), b=np.array([0, 1]), e=ENDS), ""),
        (program(node("ReduceLogSumExp", ["x", "a"], ["y"]), a=np.array([1])), ""),
    ],
)
def test_what_openvino_would_get_wrong_is_refused(made: bytes, reason: str, tmp_path: Path) -> None:
    if not reason:
        opened(open_openvino, made, tmp_path)
        return
    with pytest.raises(BackendError, match=f"OpenVINO would give wrong numbers: .*{reason}"):
        opened(open_openvino, made, tmp_path)
    opened(open_onnxruntime, made, tmp_path)


def test_integers_beyond_32_bits_are_refused_in_the_run(tmp_path: Path) -> None:
    """Ids are int64 by habit; the model runs as long as they are small."""
    table = np.arange(12, dtype=np.float32).reshape(6, 2)
    made = program(node("Gather", ["t", "x"], ["y"]), inputs=INT64, shape=("n", 2), t=table)
    run = opened(open_openvino, made, tmp_path, "int64")
    assert run(np.array([[1, 5]])).tolist() == [[[2, 3], [10, 11]]]
    with pytest.raises(BackendError, match="'x' has integers beyond the 32 bits of OpenVINO"):
        run(np.array([[1, 2**32 + 5]]))


def quantized(dtype: type[np.integer[Any]], largest: int, *, activations: bool) -> bytes:
    """A product with a quantised weight, and quantised activations if asked for."""
    weight = np.random.default_rng(3).integers(-largest, largest + 1, (64, 32))
    weight[0, 0] = largest
    zero = 128 if dtype is np.uint8 else 0
    nodes = [
        node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], axis=1),
        node("MatMul", ["xd" if activations else "x", "wd"], ["y"]),
    ]
    if activations:
        nodes = [
            node("QuantizeLinear", ["x", "xs", "xz"], ["xq"]),
            node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"]),
            *nodes,
        ]
    return program(
        *nodes,
        shape=("n", 64),
        w=(weight + zero).astype(dtype),
        ws=np.full(32, 0.02, np.float32),
        wz=np.full(32, zero, dtype),
        **({"xs": np.float32(0.1), "xz": np.uint8(128)} if activations else {}),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("open_model", [open_onnxruntime, open_openvino])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_int8_weights_alone_leave_the_activations_as_they_are(
    open_model: Callable[..., Any], dtype: type[np.integer[Any]], tmp_path: Path
) -> None:
    """Both engines would round them to eight bits by default: an error of 1 % of the range."""
    made = quantized(dtype, 127, activations=False)
    x = np.random.default_rng(5).normal(0, 3, (4, 64)).astype(np.float32)
    weights = {
        constant.name: numpy_helper.to_array(constant)
        for constant in onnx.load_from_string(made).graph.initializer
    }
    weight = (weights["w"].astype(np.float32) - weights["wz"]) * weights["ws"]
    expected = x @ weight
    outputs = opened(open_model, made, tmp_path)(x)
    assert np.abs(outputs - expected).max() < 1e-4 * np.abs(expected).max()


def test_full_int8_weights_saturate_without_vnni() -> None:
    """Seven bits do not; weights that are multiplied as float32 do not either."""
    import openvino

    core = openvino.Core()

    def saturates(made: bytes) -> bool:
        return saturating(made, core.read_model(made))

    assert saturates(quantized(np.int8, 127, activations=True))
    assert not saturates(quantized(np.int8, 64, activations=True))
    assert not saturates(quantized(np.int8, 127, activations=False))


def test_other_reductions_keep_their_axes() -> None:
    assert lost_axes(program(node("ReduceMax", ["x"], ["y"], axes=[1]), opset=17)) == []


def test_an_id_that_the_table_lacks_is_refused(tmp_path: Path) -> None:
    """OpenVINO would take zeros for it; a negative one counts from the end, as in ONNX Runtime."""
    made = program(
        node("Unsqueeze", ["x", "last"], ["ids"]),
        node("Abs", ["table"], ["computed"]),  # as the converter does for a padding_idx
        node("Gather", ["computed", "ids"], ["y"]),
        inputs=INT64,
        table=TABLE,
        last=np.array([-1]),
    )
    export, stored = tmp_path / "export", tmp_path / "stored"
    runs = [opened(open_openvino, made, tmp_path, "int64", export=str(export))]
    stored.write_bytes(b"a digest\n" + export.read_bytes())
    # A predictor that imports what another has compiled does not read the program.
    runs.append(opened(open_openvino, b"", tmp_path, "int64", compiled=str(stored)))
    for run, wrong in product(runs, (9, -10)):
        rows = run(np.array([[-9, 0, 8, 3, 2, 1]])).argmax(-1).ravel()
        assert rows.tolist() == [0, 0, 8, 3, 2, 1]
        with pytest.raises(BackendError, match=f"^x takes ids from -9 to 8, received {wrong}$"):
            run(np.array([[0, 0, 0, 0, 0, wrong]]))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("program_from", ["compiled", "exported", "stored", "no room"])
def test_a_refused_run_leaves_nothing_for_the_next(
    tmp_path: Path, threads: int, program_from: str
) -> None:
    """OpenVINO keeps shapes of such a run: the next one, of the shape before, would be wrong."""
    made = program(
        node("MatMul", ["x", "w"], ["h"]),
        node("Add", ["h", "three"], ["y"]),
        w=np.eye(6, dtype=np.float32),
        three=np.zeros((3, 6), np.float32),
    )
    export, stored = tmp_path / "export", tmp_path / "stored"
    files = {} if program_from == "compiled" else {"export": str(export)}
    if program_from == "no room":
        files = {"export": str(tmp_path / "missing" / "export")}
    run = opened(open_openvino, made, tmp_path, threads=threads, **files)
    if program_from == "stored":
        stored.write_bytes(b"a digest\n" + export.read_bytes())
        run = opened(open_openvino, b"", tmp_path, threads=threads, compiled=str(stored))
        stored.unlink()  # as programs are that were not used for long
    export.unlink(missing_ok=True)
    rows = np.arange(18, dtype=np.float32).reshape(3, 6)
    for _ in range(3):
        for values in (rows, -rows):
            np.testing.assert_array_equal(run(values), values)
        with pytest.raises(RuntimeError, match="input shapes dim index"):
            run(rows[:2])
