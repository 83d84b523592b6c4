"""What one request, or the files of two versions, say about a new version."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
from pydantic import BaseModel

from paddlepool.contracts.errors import BackendError
from paddlepool.contracts.ports import Agreement, Slices
from paddlepool.contracts.status import TrialEvidence, TrialExample
from paddlepool.contracts.tensors import Tensors, largest_difference
from paddlepool.engine.registry.model import ServedModel
from paddlepool.evidence.verdict.proof import Timed, bitwise_equal
from paddlepool.models.repository.manifest import DOCUMENT, Manifest
from paddlepool.models.repository.selftest import SELFTEST, Case, SelfTest

EXAMPLE_BYTES = 64 << 20
"""Maximum bytes of the examples of one model."""

MAX_PAIRS = 1000
"""Maximum pairs of run times that are kept, the latest ones."""


def with_runs(
    evidence: TrialEvidence,
    own: Timed,
    base: Timed,
    *,
    agreement: Agreement,
    slices: Slices | None,
) -> TrialEvidence:
    """Return the evidence with one more request: the runs of the new and the current version.

    Outputs of the new version that cannot be compared count as with_error(). The times count only
    if neither run was interrupted.
    """
    if error := _wrong(own.outputs, base.outputs):
        return with_error(evidence, error)
    return replace(
        evidence,
        compared=evidence.compared + 1,
        agreement=evidence.agreement + agreement(own.outputs, base.outputs),
        identical=evidence.identical + bitwise_equal(own.outputs, base.outputs),
        drift=max(evidence.drift, largest_difference(own.outputs, base.outputs)),
        seconds=_with_times(evidence, own, base),
        slices=dict(evidence.slices)
        if slices is None
        else _counted(evidence, slices, own.outputs, base.outputs, agreement),
    )


def with_answers(
    evidence: TrialEvidence, own: Timed, base: Timed, *, agreement: Callable[[Any, Any], float]
) -> TrialEvidence:
    """Return the evidence with one more whole request; the `outputs` are the answers to it."""
    return replace(
        evidence,
        compared=evidence.compared + 1,
        agreement=evidence.agreement + agreement(own.outputs, base.outputs),
        identical=evidence.identical + (own.outputs == base.outputs),
        seconds=_with_times(evidence, own, base),
    )


def _with_times(
    evidence: TrialEvidence, own: Timed, base: Timed
) -> tuple[tuple[float, float], ...]:
    if own.seconds is None or base.seconds is None:
        return evidence.seconds
    return (*evidence.seconds[1 - MAX_PAIRS :], (own.seconds, base.seconds))


def with_error(evidence: TrialEvidence, error: str) -> TrialEvidence:
    """Return the evidence with one more request, on which the new version failed: agreement 0."""
    compared, errors = evidence.compared + 1, evidence.errors + 1
    return replace(evidence, compared=compared, errors=errors, error=error)


def worst(
    examples: Sequence[TrialExample], example: TrialExample, most: int
) -> Sequence[TrialExample]:
    """Return `examples` with `example` in its place, those that agree least first.

    At most `most` remain, and at most EXAMPLE_BYTES of tensors. If `most` is 0 or `example` agrees
    fully, returns `examples` unchanged.
    """
    if not most or example.agreement > 1 - 1e-9:  # a difference of two sums
        return examples
    kept: list[TrialExample] = []
    room = EXAMPLE_BYTES
    for row in sorted([*examples, example], key=lambda row: row.agreement):
        room -= size_of(row[1:])
        if room < 0 or len(kept) == most:
            break
        kept.append(row)
    return kept


def size_of(value: Any) -> int:
    """Return about how many bytes tensors, an answer or the payload of a request hold."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, str | bytes | bytearray | memoryview):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(size_of, value.values()))
    if isinstance(value, list | tuple | set):
        return sum(map(size_of, value))
    if is_dataclass(value):
        return sum(size_of(getattr(value, field.name)) for field in fields(value))
    return size_of(vars(value)) if isinstance(value, BaseModel) else sys.getsizeof(value)


def agreement_with(test: SelfTest) -> Agreement:
    """Return the measure `test.agreement` of the task.

    If it is None, return one that gives 1 for outputs within the tolerance of `test`, else 0.
    """
    if test.agreement is not None:
        return test.agreement

    def agreement(outputs: Tensors, expected: Tensors) -> float:
        try:
            test.compare(Case(inputs={}, outputs=expected), outputs)
        except BackendError:
            return 0.0
        return 1.0

    return agreement


def _counted(
    evidence: TrialEvidence, slices: Slices, own: Tensors, base: Tensors, agreement: Agreement
) -> dict[str, tuple[int, float]]:
    """Return `evidence.slices` with one more request, whose outputs are `own` and `base`."""
    counts = dict(evidence.slices)
    names = slices(base)
    rows = zip(_rows(own, len(names)), _rows(base, len(names)), strict=True)
    for name, (outputs, expected) in zip(names, rows, strict=True):
        count, total = counts.get(name, (0, 0.0))
        counts[name] = (count + 1, total + agreement(outputs, expected))
    return counts


def _rows(tensors: Tensors, count: int) -> Iterator[Tensors]:
    return ({name: a[i : i + 1] for name, a in tensors.items()} for i in range(count))


def _wrong(outputs: Tensors, expected: Tensors) -> str:
    """Return what is wrong with outputs that cannot be compared; empty if they can."""
    for name, reference in expected.items():
        array = outputs.get(name)
        if array is None or array.dtype != reference.dtype or array.ndim != reference.ndim:
            return f"output {name!r} has another type or shape"
        floats = reference.dtype.kind == "f" and np.isfinite(reference).all()
        if floats and not np.isfinite(array).all():
            return f"output {name!r} contains NaN or infinity"
    return ""


def unlike(served: ServedModel, current: ServedModel) -> str:
    """Return why the inputs of requests to `current` cannot test `served`; "" if they can."""
    if served.inputs != current.inputs:
        return f"its inputs differ in name, type or shape from those of version {current.version}"
    own, base = ([spec.name for spec in model.outputs] for model in (served, current))
    if own != base:
        return (
            f"its outputs are named {', '.join(own)}, those of version {current.version} "
            f"{', '.join(base)}"
        )
    files, others = (_pipeline_files(model.manifest) for model in (served, current))
    different = sorted(name for name in {**files, **others} if files.get(name) != others.get(name))
    if different:
        return (
            f"its {different[0]} differs from that of version {current.version}: requests are "
            "prepared with it, so their tensors say nothing about this version"
        )
    return ""


def _pipeline_files(manifest: Manifest) -> dict[str, str]:
    """Return the digests, by name, of the files that a pipeline may read.

    These are all but the programs, the self-test, and documents such as README and LICENSE.
    """
    programs = [
        name
        for program in (manifest.reference, *manifest.programs)
        for name in (program.program, program.params)
    ]
    return {
        name: entry.sha256
        for name, entry in manifest.files.items()
        if name not in (*programs, SELFTEST) and not DOCUMENT.fullmatch(name)
    }
