"""Reads ONNX files: programs, and files that ONNX_BACKENDS run in place of a Paddle program."""

from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from paddlepool.contracts.errors import ExportError
from paddlepool.contracts.ports import Predictor, PredictorFactory, PredictorSpec
from paddlepool.contracts.tensors import TensorSpec
from paddlepool.models.repository.manifest import (
    ONNX_BACKENDS,
    OWN_ONNX,
    Derivation,
    DerivedProgram,
)


def read_onnx_specs(path: Path) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Return an ONNX file's inputs, without weights, and its outputs; a symbolic size becomes -1.

    Raises ExportError if the file is missing or no ONNX graph, if its weights are in other files,
    or if an input or output is no tensor of a known type.
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


def own_onnx(spec: PredictorSpec, file: str) -> DerivedProgram:
    """Return the manifest's entry for the ONNX `file` beside the Paddle program of `spec`.

    Raises ExportError if `file` cannot be read or its inputs or outputs do not match the program's.
    """
    inputs, outputs = read_onnx_specs(spec.directory / file)
    by_name = attrgetter("name")
    for kind, own, others in (
        ("inputs", sorted(inputs, key=by_name), sorted(spec.inputs, key=by_name)),
        # Outputs are identified by their order.
        ("outputs", _unnamed(outputs), _unnamed(spec.outputs)),
    ):
        if len(own) != len(others) or not all(map(_go_together, own, others)):
            raise ExportError(
                f"{file} does not go with {spec.program}: its {kind} are {_listed(own)}, those of "
                f"{spec.program} {_listed(others)}; correct it or remove it"
            )
    derivation = Derivation(tool="supplied with the model", versions={})
    return DerivedProgram(name=OWN_ONNX, format="onnx", program=file, derivation=derivation)


def with_own_onnx(open_predictor: PredictorFactory, file: str) -> PredictorFactory:
    """Return a factory that opens `file` for ONNX_BACKENDS, and the spec's program for others."""

    def opened(spec: PredictorSpec, *, suspension: Any = None) -> Predictor:
        if spec.backend in ONNX_BACKENDS:
            spec = replace(spec, program=file, params=None, format="onnx")
        return open_predictor(spec, suspension=suspension)

    return opened


def _unnamed(specs: Sequence[TensorSpec]) -> list[TensorSpec]:
    return [replace(spec, name="") for spec in specs]


def _go_together(own: TensorSpec, other: TensorSpec) -> bool:
    """Return whether two specs have equal names and dtypes, and some shape fits both."""
    sizes = zip(own.shape, other.shape, strict=False)
    fit = all(-1 in pair or pair[0] == pair[1] for pair in sizes)
    same = (own.name, own.dtype, len(own.shape)) == (other.name, other.dtype, len(other.shape))
    return same and fit


def _listed(specs: Sequence[TensorSpec]) -> str:
    return ", ".join(f"{spec.name} {spec.dtype} {list(spec.shape)}".lstrip() for spec in specs)
