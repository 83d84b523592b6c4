"""ONNX programs of a few operators, and a backend's handler for them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT, DOUBLE, INT64 = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64


def program(
    *nodes: onnx.NodeProto,
    inputs: int = FLOAT,
    output: int = FLOAT,
    opset: int = 18,
    shape: tuple[Any, ...] = ("n", 6),
    **constants: np.ndarray[Any, Any],
) -> bytes:
    """An ONNX program from `x` of this shape to `y`."""
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("x", inputs, shape)],
        [helper.make_tensor_value_info("y", output, None)],
        initializer=[numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    made.ir_version = 9
    return made.SerializeToString()


def opened(
    open_model: Callable[..., Any],
    made: bytes,
    directory: Path,
    dtype: str = "float32",
    **more: Any,
) -> Callable[[np.ndarray[Any, Any]], Any]:
    (directory / "program.onnx").write_bytes(made)
    opening: dict[str, Any] = {
        "directory": str(directory), "program": "program.onnx", "format": "onnx", "options": {},
        "threads": 1, "inputs": [{"name": "x", "dtype": dtype}], "program_name": None,
        **more,
    }  # fmt: skip
    _, handle = open_model(opening)
    return lambda x: handle({}, {"x": x}, ())[1]["0"]
