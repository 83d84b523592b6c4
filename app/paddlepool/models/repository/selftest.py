"""selftest.npz: the golden inputs and outputs by which a predictor is tested before it serves."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paddlepool.contracts.errors import BackendError, ConfigError, ManifestError
from paddlepool.contracts.ports import Agreement, Predictor, PredictorFactory, PredictorSpec
from paddlepool.contracts.resources import processor
from paddlepool.contracts.tensors import (
    Array,
    Tensors,
    TensorSpec,
    absolute_differences,
    largest_difference,
    mean_difference,
)
from paddlepool.models.repository.config import Budget, InstanceGroup
from paddlepool.models.repository.files import open_plain_file

SELFTEST = "selftest.npz"
RUN_SECONDS = 120.0
"""Timeout of a run that serves no request."""
UNREADABLE = (
    OSError, TypeError, ValueError, EOFError, MemoryError, RuntimeError,
    zipfile.BadZipFile, zlib.error,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """How far outputs are from the golden outputs.

    The differences are those of the output that differs most, as largest_difference() and
    mean_difference() compute them. `agreement` is from 0 to 1, or None if the task has no measure
    of it.
    """

    largest_difference: float
    mean_difference: float
    agreement: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The inputs of one run of a program, and the expected outputs."""

    inputs: Tensors
    outputs: Tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTest:
    """Inputs, their expected outputs, and how far other outputs may be from these.

    `inputs` and `outputs` are the first case, the one of a realistic size. `more` are further
    cases, of other sizes and with several rows. The limit is `tolerance` or the `budget` of a lower
    precision. `tolerance` is the largest allowed difference; if `relative`, it is a share of the
    expected value and of the usual size of the output's values, and UNEQUAL_SHARE of an output's
    whole numbers may differ. The first `real` cases have inputs as the model's users send them; 0
    if that is not known. If there are any, the budget's agreement applies only to them: what a
    model reads in noise changes with every rounding. `agreement` is the task's measure, `program`
    the name of the group's program; either may be None.
    """

    inputs: Tensors
    outputs: Tensors
    tolerance: float
    more: tuple[Case, ...] = ()
    relative: bool = False
    real: int = 0
    budget: Budget | None = None
    agreement: Agreement | None = None
    program: str | None = None

    @property
    def cases(self) -> tuple[Case, ...]:
        return (Case(inputs=self.inputs, outputs=self.outputs), *self.more)

    @property
    def mean_tolerance(self) -> float:
        """Largest allowed mean absolute difference from the expected outputs.

        It applies to groups without a `budget`.
        """
        if not self.relative:
            return self.tolerance
        return self.tolerance * max(map(usual_size, self.outputs.values()), default=1.0)

    def judging(self, group: InstanceGroup) -> SelfTest:
        """Return a copy for this group: with its program, its budget, and its tolerance if set.

        A tolerance of the group is absolute.
        """
        return replace(
            self,
            tolerance=group.tolerance or self.tolerance,
            relative=self.relative and group.tolerance is None,
            budget=group.budget,
            program=group.program,
        )

    def with_outputs(self, names: Mapping[str, str]) -> SelfTest:
        """Return a copy whose outputs have other names; those not in `names` keep theirs."""

        def renamed(outputs: Tensors) -> Tensors:
            return {names.get(name, name): array for name, array in outputs.items()}

        more = [replace(case, outputs=renamed(case.outputs)) for case in self.more]
        return replace(self, outputs=renamed(self.outputs), more=tuple(more))

    def opened(
        self, open_predictor: PredictorFactory, spec: PredictorSpec, *, timeout: float = RUN_SECONDS
    ) -> Predictor:
        """Open a predictor and check() it; close it if that fails.

        `timeout` is in seconds, for each run. Raises what opening and check() raise.
        """
        predictor = open_predictor(spec)
        try:
            self.check(predictor, timeout=timeout)
        except BaseException:
            predictor.close()
            raise
        return predictor

    def check(self, predictor: Predictor, *, timeout: float) -> None:
        """Run the predictor on every case and check its outputs.

        `timeout` is in seconds, for each run. Raises BackendError if an output is missing, wrong,
        or of the wrong shape or dtype, ConfigError if the budget has an agreement but the model's
        task has no measure of it, and the errors of Predictor.run().
        """
        for case in self.cases:
            outputs = predictor.run(case.inputs, timeout=timeout)
            try:
                self.compare(case, outputs)
            except BackendError as error:
                if not self.more:
                    raise
                raise BackendError(f"{error.message}; {shapes_of(case.inputs)}") from None

    def compare(self, case: Case, outputs: Tensors) -> None:
        """Check `outputs` of a case. Raises BackendError and ConfigError as check() does."""
        for name, expected in case.outputs.items():
            array = outputs.get(name)
            if array is None or (array.dtype, array.shape) != (expected.dtype, expected.shape):
                raise BackendError(
                    f"self-test: output {name!r} should be {_described(expected)}, "
                    f"received {_described(array)}"
                )
        if self.budget is not None:
            self._check_budget(self.budget, self._quality(outputs, case), self.is_judged(case))
            return
        for name, expected in case.outputs.items():
            if self.relative:
                self._check_relative(name, outputs[name], expected)
                continue
            worst = float(absolute_differences(outputs[name], expected).max(initial=0.0))
            # `not <=` rather than `>`: a NaN must fail.
            if not worst <= self.tolerance:
                raise BackendError(
                    f"self-test: output {name!r} differs by {worst:.3g} from the expected values, "
                    f"limit {self.tolerance:.3g}"
                )

    def _check_relative(self, name: str, output: Array, expected: Array) -> None:
        if expected.dtype.kind != "f":
            share = float((output != expected).mean()) if expected.size else 0.0
            if share > UNEQUAL_SHARE:
                raise BackendError(
                    f"self-test: {share:.1%} of output {name!r} differ from the expected values, "
                    f"limit {UNEQUAL_SHARE:.0%}"
                )
            return
        gaps = absolute_differences(output, expected)
        limits = self.tolerance * (np.abs(expected.astype(np.float64)) + usual_size(expected))
        wrong = ~(gaps <= limits)  # a NaN must fail
        if wrong.any():
            at = np.unravel_index(int(np.argmax(np.where(wrong, gaps, -1.0))), gaps.shape)
            raise BackendError(
                f"self-test: output {name!r} has {output[at]:.4g} in place of {expected[at]:.4g}, "
                f"allowed difference {limits[at]:.2g}; {wrong.mean():.1%} of its values are wrong"
            )

    def is_judged(self, case: Case) -> bool:
        """Return whether the budget's agreement applies to this case; see `real`."""
        return not self.real or any(case.inputs is real.inputs for real in self.cases[: self.real])

    def quality(self, outputs: Tensors) -> Quality:
        """Compare outputs with those of the first case, which must have the same shapes."""
        return self._quality(outputs, self.cases[0])

    def _quality(self, outputs: Tensors, case: Case) -> Quality:
        return Quality(
            largest_difference=largest_difference(outputs, case.outputs),
            mean_difference=mean_difference(outputs, case.outputs),
            agreement=None if self.agreement is None else self.agreement(outputs, case.outputs),
        )

    def _check_budget(self, budget: Budget, quality: Quality, judged: bool) -> None:
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
        agreed = quality.agreement >= least or not judged
        if not (agreed and math.isfinite(quality.mean_difference)):
            raise BackendError(
                f"self-test: the agreement with the expected outputs is {quality.agreement:.3f}, "
                f"the budget is {least:.3f}{self._cause()}"
            )

    def _cause(self) -> str:
        """Return the likely cause of a derived program's failure on this processor, else ""."""
        remark = processor().remark if self.program else None
        return f": {remark}" if remark else ""


UNEQUAL_SHARE = 0.01
"""Share of an integer output's values that may differ: rounding can decide between two classes."""


def usual_size(expected: Array) -> float:
    """Return the usual magnitude of an output's values, for a relative tolerance.

    It is the 90th percentile, so that a few huge values do not hide wrong small ones. It is at
    least a hundredth of the largest, so that rounding does not fail where most values are 0, and at
    least SMALLEST_SIZE, because an output of probabilities may be almost 0 everywhere.
    """
    sizes: NDArray[np.float64] = np.abs(expected.astype(np.float64))
    if not sizes.size:
        return SMALLEST_SIZE
    return max(float(np.quantile(sizes, 0.9)), float(sizes.max()) / 100, SMALLEST_SIZE)


SMALLEST_SIZE = 1e-3


def shapes_of(tensors: Tensors) -> str:
    """Format names and shapes for messages: `x 1×3×320×480, length 1`."""
    return ", ".join(
        f"{name} {'×'.join(map(str, array.shape)) or 'scalar'}" for name, array in tensors.items()
    )


def too_small(test: SelfTest, inputs: Sequence[TensorSpec]) -> str:
    """Return why times measured on the self-test's input mean nothing; empty if they are usable.

    They mean nothing if a free axis other than the first has size 1, unless `test` is relative. An
    older Paddlepool sealed programs in this way: on one pixel, for example.
    """
    small = [
        f"{spec.name} {list(test.inputs[spec.name].shape)}"
        for spec in inputs
        if any(
            axis > 0 and size == -1 and test.inputs[spec.name].shape[axis] == 1
            for axis, size in enumerate(spec.shape)
        )
    ]
    if test.relative or not small:
        return ""
    return (
        f"the self-test's input is too small to tell: {', '.join(small)}; "
        "seal the version again, or add a [[warmup]] of a realistic size"
    )


def write_selftest(directory: Path, test: SelfTest) -> None:
    """Write selftest.npz as read_selftest() reads it, without budget, agreement and program."""
    golden: dict[str, Array] = {}
    for number, case in enumerate(test.cases):
        for kind, tensors in (("input", case.inputs), ("output", case.outputs)):
            golden |= {_key(number, kind, name): array for name, array in tensors.items()}
    if test.relative:
        golden["relative"] = np.bool_(True)  # type: ignore[assignment]
    if test.real:
        golden["real"] = np.int64(test.real)  # type: ignore[assignment]
    np.savez_compressed(
        directory / SELFTEST, allow_pickle=False, tolerance=np.float64(test.tolerance), **golden
    )


def _key(case: int, kind: str, name: str) -> str:
    return f"{case}.{kind}.{name}" if case else f"{kind}.{name}"


def read_selftest(
    directory: Path, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]
) -> SelfTest:
    """Read a version's self-test.

    Raises ManifestError if it cannot be read or does not fit `inputs` and `outputs`. An output may
    be empty along a free axis, for example if a detector detects no object. Then only its dtype and
    shape are tested.
    """
    label = f"{directory.parent.name}/{directory.name}/{SELFTEST}"
    try:
        with (
            open_plain_file(directory / SELFTEST) as file,
            np.load(file, allow_pickle=False) as archive,
        ):
            cases = []
            for number in count():
                if number and _key(number, "input", inputs[0].name) not in archive:
                    break
                tensors, expected = (
                    {
                        spec.name: _array(archive, _key(number, kind, spec.name), spec, label)
                        for spec in specs
                    }
                    for kind, specs in (("input", inputs), ("output", outputs))
                )
                cases.append(Case(inputs=tensors, outputs=expected))
            tolerance, relative = archive.get("tolerance"), "relative" in archive
            real = int(archive.get("real", 0))
    except UNREADABLE as error:
        raise ManifestError(f"{label} cannot be read as arrays") from error
    is_number = tolerance is not None and not tolerance.shape and tolerance.dtype.kind in "fiu"
    if not (is_number and 0 < tolerance < np.inf):
        raise ManifestError(f"{label}: tolerance must be one positive number")
    first, *more = cases
    return SelfTest(
        inputs=first.inputs,
        outputs=first.outputs,
        tolerance=float(tolerance),
        more=tuple(more),
        relative=relative,
        real=real,
    )


def _array(archive: Mapping[str, Array], name: str, spec: TensorSpec, label: str) -> Array:
    array = archive.get(name)
    if array is None or not spec.admits(array) or ("input." in name and array.size == 0):
        raise ManifestError(
            f"{label}: {name} should be {spec.dtype} {list(spec.shape)}, "
            f"received {_described(array)}"
        )
    return array


def _described(array: Array | None) -> str:
    return "nothing" if array is None else f"{array.dtype} {list(array.shape)}"
