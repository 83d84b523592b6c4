"""Measures how far a derived program is from its reference, during search and before publishing."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from app.contracts.errors import ConfigError, ExportError
from app.contracts.ports import Agreement, PredictorFactory, PredictorSpec
from app.contracts.tensors import Array, Tensors, absolute_differences
from app.engine.backends.openvino import imported_openvino
from app.making.programs.derive import Derived
from app.models.repository.config import InstanceGroup
from app.models.repository.layout import ModelFiles
from app.models.repository.manifest import MeasuredLoss

RUN_SECONDS = 120.0
LARGEST_DRIFT = 0.02
"""Limit of the mean absolute difference, relative to the reference's largest output or to 1."""


def checked(
    derived: Derived,
    files: ModelFiles,
    samples: Sequence[Tensors],
    *,
    agreement: Agreement | None,
    least_agreement: float = 0.0,
    open_predictor: PredictorFactory,
) -> Derived:
    """`derived` with its loss on `samples` added to its quality.

    `agreement` is the measure of the model's task, `least_agreement` its limit. Raises ExportError
    if the loss is too large: this machine computes something else than the one of the ranges.
    """
    reference = files.spec(files.config.group(_reference_group(files)))
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / derived.entry.program).write_bytes(derived.content)
        small = replace(
            files.spec(InstanceGroup(name="checked", backend=derived.backend)),
            directory=Path(scratch),
            program=derived.entry.program,
            params=None,
            program_name=derived.entry.name,
            format=derived.entry.format,
        )
        expected, found = (_outputs(spec, samples, open_predictor) for spec in (reference, small))
    drifts = [_drift(ours, theirs) for ours, theirs in zip(found, expected, strict=True)]
    figures = {"mean difference": round(float(np.mean(drifts)), 5)}
    fit = figures["mean difference"] <= LARGEST_DRIFT
    if agreement is not None:
        both = [agreement(ours, theirs) for ours, theirs in zip(found, expected, strict=True)]
        figures["agreement"] = round(float(np.mean(both)), 5)
        fit = fit and figures["agreement"] >= least_agreement
    if not fit:
        said = ", ".join(f"{name} {value:.4f}" for name, value in figures.items())
        raise ExportError(
            f"{files.name}: the program {derived.entry.name} is not what it should be: {said} on "
            f"{len(samples)} samples (limits {LARGEST_DRIFT}, {least_agreement})"
        )
    loss = MeasuredLoss(data="samples on this machine", count=len(samples), figures=figures)
    return replace(derived, entry=replace(derived.entry, quality=(*derived.entry.quality, loss)))


def _reference_group(files: ModelFiles) -> str:
    return next(group.name for group in files.config.instance_group if group.program is None)


def _outputs(
    spec: PredictorSpec, samples: Sequence[Tensors], open_predictor: PredictorFactory
) -> list[Tensors]:
    predictor = open_predictor(spec)
    try:
        return [predictor.run(sample, timeout=RUN_SECONDS) for sample in samples]
    finally:
        predictor.close()


def _drift(found: Tensors, expected: Tensors) -> float:
    """The drift of the output that differs most."""
    return max((drift(found[name], array) for name, array in expected.items()), default=0.0)


class Differences:
    """Measures programs against the reference's outputs on some samples."""

    def __init__(self, reference: onnx.ModelProto, samples: Sequence[Tensors]) -> None:
        self._samples = samples
        self._expected = _run(reference, samples)

    def __call__(self, model: onnx.ModelProto) -> float:
        """The mean of drift() over samples and outputs."""
        found = _run(model, self._samples)
        gaps = [
            drift(a, b)
            for ours, theirs in zip(found, self._expected, strict=True)
            for a, b in zip(ours, theirs, strict=True)
        ]
        return float(np.mean(gaps))


def _run(model: onnx.ModelProto, samples: Sequence[Tensors]) -> list[list[NDArray[np.float64]]]:
    """Run a model with OpenVINO, which computes int8 as in service."""
    try:
        openvino = imported_openvino()
    except ImportError as error:
        raise ConfigError("quantising needs the package openvino (extra onnx)") from error
    core = openvino.Core()
    compiled = core.compile_model(
        core.read_model(model.SerializeToString()),
        "CPU",
        {"INFERENCE_PRECISION_HINT": "f32", "ENABLE_CPU_PINNING": False},
    )
    request = compiled.create_infer_request()
    return [
        [np.array(value, np.float64) for value in request.infer(dict(sample)).values()]
        for sample in samples
    ]


def drift(found: Array, expected: Array) -> float:
    """The mean absolute difference as a share of the largest expected value, or of 1."""
    if not expected.size:
        return 0.0
    largest = max(1.0, float(np.abs(expected.astype(np.float64)).max()))
    return float(absolute_differences(found, expected).mean()) / largest
