"""A derived program held against its version's reference, before anybody is served by it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from app.contracts.errors import ExportError
from app.contracts.ports import Agreement, PredictorFactory, PredictorSpec
from app.contracts.tensors import Tensors
from app.programs.derive import Derived
from app.programs.difference import drift
from app.repository.config import InstanceGroup
from app.repository.layout import ModelFiles
from app.repository.manifest import MeasuredLoss

RUN_SECONDS = 120.0
LEAST_AGREEMENT = 0.9
"""Of masks their intersection over union, of labels the share of the same. Low,
because samples may be pictures without an object; a collapse is far below."""

LARGEST_DRIFT = 0.02
"""Mean absolute difference of outputs, as a share of the reference's largest output or of 1."""


def checked(
    derived: Derived,
    files: ModelFiles,
    samples: Sequence[Tensors],
    *,
    agreement: Agreement | None,
    open_predictor: PredictorFactory,
) -> Derived:
    """The same with what it loses on `samples` among its quality.

    Raises ExportError with the figures where that is too much: the machine, or the packages on it,
    compute something else than those that the ranges were measured with.
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
        fit = fit and figures["agreement"] >= LEAST_AGREEMENT
    if not fit:
        said = ", ".join(f"{name} {value:.4f}" for name, value in figures.items())
        raise ExportError(
            f"{files.name}: the program {derived.entry.name} is not what it should be: {said} on "
            f"{len(samples)} samples (limits {LARGEST_DRIFT}, {LEAST_AGREEMENT})"
        )
    loss = MeasuredLoss(data="samples on this machine", count=len(samples), figures=figures)
    return replace(derived, entry=replace(derived.entry, quality=(*derived.entry.quality, loss)))


def _reference_group(files: ModelFiles) -> str:
    """The first group that runs the reference."""
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
    """Of the output that differs most."""
    return max((drift(found[name], array) for name, array in expected.items()), default=0.0)
