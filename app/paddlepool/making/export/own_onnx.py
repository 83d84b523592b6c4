"""Checks and runs an ONNX file that lies beside a version's Paddle program, for ONNX backends."""

from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

from paddlepool.contracts.errors import ExportError
from paddlepool.contracts.ports import Predictor, PredictorFactory, PredictorSpec
from paddlepool.contracts.tensors import TensorSpec
from paddlepool.making.export.read_onnx import read_onnx_specs
from paddlepool.models.repository.manifest import (
    ONNX_BACKENDS,
    OWN_ONNX,
    Derivation,
    DerivedProgram,
)


def own_onnx(spec: PredictorSpec, file: str) -> DerivedProgram:
    """Return the manifest's entry for the ONNX file `file` beside the program of `spec`.

    Raises ExportError if the inputs or outputs of the file and the program do not match.
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
    """Return a factory that opens `file` in place of the program for ONNX_BACKENDS."""

    def opened(spec: PredictorSpec, *, suspension: Any = None) -> Predictor:
        if spec.backend in ONNX_BACKENDS:
            spec = replace(spec, program=file, params=None, format="onnx")
        return open_predictor(spec, suspension=suspension)

    return opened


def _unnamed(specs: Sequence[TensorSpec]) -> list[TensorSpec]:
    return [replace(spec, name="") for spec in specs]


def _go_together(own: TensorSpec, other: TensorSpec) -> bool:
    """Return whether some array fits both; a free axis fits every size."""
    sizes = zip(own.shape, other.shape, strict=False)
    fit = all(-1 in pair or pair[0] == pair[1] for pair in sizes)
    same = (own.name, own.dtype, len(own.shape)) == (other.name, other.dtype, len(other.shape))
    return same and fit


def _listed(specs: Sequence[TensorSpec]) -> str:
    return ", ".join(f"{spec.name} {spec.dtype} {list(spec.shape)}".lstrip() for spec in specs)
