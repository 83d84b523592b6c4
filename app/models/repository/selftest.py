"""selftest.npz: the golden input and output by which a predictor is tested before it serves."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from app.contracts.errors import BackendError, ConfigError, ManifestError
from app.contracts.ports import Agreement, Predictor, PredictorFactory, PredictorSpec
from app.contracts.resources import processor
from app.contracts.tensors import (
    Array,
    Tensors,
    TensorSpec,
    absolute_differences,
    largest_difference,
    mean_difference,
)
from app.models.repository.config import Budget, InstanceGroup
from app.models.repository.files import open_plain_file

SELFTEST = "selftest.npz"
UNREADABLE = (
    OSError, TypeError, ValueError, EOFError, MemoryError, RuntimeError,
    zipfile.BadZipFile, zlib.error,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """Differences of the worst output from its golden output, and the agreement from 0 to 1."""

    largest_difference: float
    mean_difference: float
    agreement: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTest:
    """One input, its expected output, and how far other outputs may be from it.

    The limit is `tolerance`, the largest absolute difference, or the `budget` of a lower precision.
    """

    inputs: Tensors
    outputs: Tensors
    tolerance: float
    budget: Budget | None = None
    agreement: Agreement | None = None
    program: str | None = None

    def judging(self, group: InstanceGroup) -> SelfTest:
        """Return a copy for this group: with its program, its budget, and its tolerance if set."""
        return replace(
            self,
            tolerance=group.tolerance or self.tolerance,
            budget=group.budget,
            program=group.program,
        )

    def opened(
        self, open_predictor: PredictorFactory, spec: PredictorSpec, *, timeout: float = 120.0
    ) -> Predictor:
        """Open a predictor and check() it. Raises what opening and check() raise."""
        predictor = open_predictor(spec)
        try:
            self.check(predictor, timeout=timeout)
        except BaseException:
            predictor.close()
            raise
        return predictor

    def check(self, predictor: Predictor, *, timeout: float) -> None:
        """Run the predictor once and check its outputs.

        Raises BackendError if an output is missing, wrong, or of the wrong shape or dtype, and
        ConfigError if the budget has an agreement but the model's task has no measure of it.
        """
        found = predictor.run(self.inputs, timeout=timeout)
        for name, expected in self.outputs.items():
            array = found.get(name)
            if array is None or (array.dtype, array.shape) != (expected.dtype, expected.shape):
                raise BackendError(
                    f"self-test: output {name!r} should be {_described(expected)}, "
                    f"received {_described(array)}"
                )
        if self.budget is not None:
            self._check_budget(self.budget, self.quality(found))
            return
        for name, expected in self.outputs.items():
            worst = float(absolute_differences(found[name], expected).max(initial=0.0))
            # `not <=` rather than `>`: a NaN must fail.
            if not worst <= self.tolerance:
                raise BackendError(
                    f"self-test: output {name!r} differs by {worst:.3g} from the expected values, "
                    f"limit {self.tolerance:.3g}"
                )

    def quality(self, found: Tensors) -> Quality:
        """Compare outputs with the golden outputs, which must have the same shapes."""
        return Quality(
            largest_difference=largest_difference(found, self.outputs),
            mean_difference=mean_difference(found, self.outputs),
            agreement=None if self.agreement is None else self.agreement(found, self.outputs),
        )

    def _check_budget(self, budget: Budget, quality: Quality) -> None:
        mean, least = budget.mean_difference, budget.agreement
        if mean is not None and not quality.mean_difference <= mean:
            raise BackendError(
                f"self-test: the outputs differ by {quality.mean_difference:.3g} on average from "
                f"the expected values, the budget is {mean:.3g}{self._cause()}"
            )
        if least is None:
            if not math.isfinite(quality.mean_difference):
                raise BackendError("self-test: the outputs contain NaN or infinity")
            return
        if quality.agreement is None:
            raise ConfigError(
                "budget.agreement needs a model whose task compares outputs; name a "
                "mean_difference instead"
            )
        if not (quality.agreement >= least and math.isfinite(quality.mean_difference)):
            raise BackendError(
                f"self-test: the agreement with the expected outputs is {quality.agreement:.3f}, "
                f"the budget is {least:.3f}{self._cause()}"
            )

    def _cause(self) -> str:
        """The likely cause of a derived program's failure, if this processor has a known one."""
        remark = processor().remark if self.program else None
        return f": {remark}" if remark else ""


def write_selftest(directory: Path, inputs: Tensors, outputs: Tensors, *, tolerance: float) -> None:
    """Write selftest.npz as read_selftest() reads it."""
    golden = {f"input.{name}": array for name, array in inputs.items()}
    golden |= {f"output.{name}": array for name, array in outputs.items()}
    np.savez_compressed(
        directory / SELFTEST, allow_pickle=False, tolerance=np.float64(tolerance), **golden
    )


def read_selftest(
    directory: Path, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]
) -> SelfTest:
    """Read a version's self-test. Raises ManifestError if it does not fit the specs.

    An output may be empty along a free axis, for example if a detector detects no object. Then only
    its dtype and shape are tested.
    """
    label = f"{directory.parent.name}/{directory.name}/{SELFTEST}"
    try:
        with (
            open_plain_file(directory / SELFTEST) as file,
            np.load(file, allow_pickle=False) as archive,
        ):
            given, expected = (
                {spec.name: _array(archive, kind, spec, label) for spec in specs}
                for kind, specs in (("input", inputs), ("output", outputs))
            )
            tolerance = archive.get("tolerance")
    except UNREADABLE as error:
        raise ManifestError(f"{label} cannot be read as arrays") from error
    is_number = tolerance is not None and not tolerance.shape and tolerance.dtype.kind in "fiu"
    if not (is_number and 0 < tolerance < np.inf):
        raise ManifestError(f"{label}: tolerance must be one positive number")
    return SelfTest(inputs=given, outputs=expected, tolerance=float(tolerance))


def _array(archive: Mapping[str, Array], kind: str, spec: TensorSpec, label: str) -> Array:
    name = f"{kind}.{spec.name}"
    found = archive.get(name)
    if found is None or not spec.admits(found) or (kind == "input" and found.size == 0):
        raise ManifestError(
            f"{label}: {name} should be {spec.dtype} {list(spec.shape)}, "
            f"received {_described(found)}"
        )
    return found


def _described(array: Array | None) -> str:
    return "nothing" if array is None else f"{array.dtype} {list(array.shape)}"
