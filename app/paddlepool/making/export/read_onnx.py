"""Reads the inputs and outputs that an ONNX file declares."""

from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from paddlepool.contracts.errors import ExportError
from paddlepool.contracts.tensors import TensorSpec


def read_onnx_specs(path: Path) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Return the inputs and the outputs that a file declares; -1 is a free or symbolic size.

    Raises ExportError if the file is no ONNX graph, if its weights are in other files, or if an
    input or output is no tensor of a known type.
    """
    try:
        graph = onnx.load(path, load_external_data=False).graph
    except (DecodeError, OSError) as error:
        raise ExportError(f"{path.name} is not an ONNX model") from error
    outside = [tensor.name for tensor in graph.initializer if tensor.external_data]
    if outside:
        raise ExportError(
            f"{path.name} keeps {len(outside)} weights in other files; save it as one file"
        )
    constants = {tensor.name for tensor in graph.initializer}
    inputs = tuple(_spec(value) for value in graph.input if value.name not in constants)
    return inputs, tuple(_spec(value) for value in graph.output)


def _spec(value: onnx.ValueInfoProto) -> TensorSpec:
    kind = value.type.tensor_type
    if {value.type.WhichOneof("value")} & {"sequence_type", "map_type"}:
        raise ExportError(
            f"{value.name} is a map or a sequence and not a tensor; of scikit-learn, convert the "
            'model with options={"zipmap": False}'
        )
    if not value.type.HasField("tensor_type") or not kind.elem_type:
        raise ExportError(f"{value.name} is no tensor of a known type")
    if kind.elem_type == onnx.TensorProto.BFLOAT16:
        dtype = "bfloat16"
    else:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).name
    shape = tuple(
        size.dim_value if size.HasField("dim_value") and size.dim_value > 0 else -1
        for size in kind.shape.dim
    )
    return TensorSpec(value.name, dtype, shape)
