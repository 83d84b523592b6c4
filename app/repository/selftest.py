"""selftest.npz: the golden input and output that prove a predictor computes what it should."""

from __future__ import annotations

import io
import math
import zipfile
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from app.contracts.errors import BackendError, ConfigError, ManifestError
from app.contracts.ports import Agreement, Predictor, PredictorFactory, PredictorSpec
from app.contracts.tensors import (
    Array,
    Tensors,
    TensorSpec,
    absolute_differences,
    largest_difference,
    mean_difference,
)
from app.repository.config import Budget, InstanceGroup
from app.repository.files import open_plain_file

SELFTEST = "selftest.npz"
MOST_BYTES = 256 << 20
"""Of all its arrays together: the server's own process unpacks them."""

PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
UNREADABLE = (
    OSError, TypeError, ValueError, EOFError, MemoryError, RuntimeError,
    zipfile.BadZipFile, zlib.error,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """How far outputs are from the golden ones: the largest absolute difference, the mean one (both
    of the output where it is worst), and how far they mean the same to the task, from 0 to 1."""

    largest_difference: float
    mean_difference: float
    agreement: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTest:
    """One input, the output it must give, and how far from it another may be: by `tolerance`, the
    largest absolute difference, or, where there is one, by the budget of a lower precision.

    `agreement` is the measure of the model's task.
    """

    inputs: Tensors
    outputs: Tensors
    tolerance: float
    budget: Budget | None = None
    agreement: Agreement | None = None

    def judging(self, group: InstanceGroup) -> SelfTest:
        """The same test by the tolerance or the budget of this group, if it has one."""
        return replace(self, tolerance=group.tolerance or self.tolerance, budget=group.budget)

    def opened(
        self, open_predictor: PredictorFactory, spec: PredictorSpec, *, timeout: float
    ) -> Predictor:
        """A predictor that passed check(); raises what opening and check() raise."""
        predictor = open_predictor(spec)
        try:
            self.check(predictor, timeout=timeout)
        except BaseException:
            predictor.close()
            raise
        return predictor

    def check(self, predictor: Predictor, *, timeout: float) -> None:
        """Run it once. Raises BackendError where an output is missing, misshapen or wrong, and
        ConfigError where the budget asks for an agreement that nothing measures."""
        found = predictor.run(self.inputs, timeout=timeout)
        self._check_shapes(found)
        if self.budget is None:
            self._check_tolerance(found)
        else:
            self._check_budget(self.budget, self.quality(found))

    def quality(self, found: Tensors) -> Quality:
        """Of outputs with the shapes of the golden ones."""
        return Quality(
            largest_difference=largest_difference(found, self.outputs),
            mean_difference=mean_difference(found, self.outputs),
            agreement=None if self.agreement is None else self.agreement(found, self.outputs),
        )

    def _check_shapes(self, found: Tensors) -> None:
        for name, expected in self.outputs.items():
            array = found.get(name)
            if array is None or (array.dtype, array.shape) != (expected.dtype, expected.shape):
                raise BackendError(
                    f"self-test: output {name!r} should be {_described(expected)}, "
                    f"received {_described(array)}"
                )

    def _check_tolerance(self, found: Tensors) -> None:
        for name, expected in self.outputs.items():
            worst = float(absolute_differences(found[name], expected).max(initial=0.0))
            # `not <=` rather than `>`: a NaN must fail.
            if not worst <= self.tolerance:
                raise BackendError(
                    f"self-test: output {name!r} differs by {worst:.3g} from the expected values, "
                    f"limit {self.tolerance:.3g}",
                    limit=self.tolerance,
                    received=worst,
                )

    def _check_budget(self, budget: Budget, quality: Quality) -> None:
        mean, least = budget.mean_difference, budget.agreement
        if mean is not None and not quality.mean_difference <= mean:
            raise BackendError(
                f"self-test: the outputs differ by {quality.mean_difference:.3g} on average from "
                f"the expected values, the budget is {mean:.3g}",
                limit=mean,
                received=quality.mean_difference,
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
                f"self-test: the outputs agree with the expected ones by {quality.agreement:.3f}, "
                f"the budget is {least:.3f}",
                limit=least,
                received=quality.agreement,
            )


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
    """Read a version's self-test. Raises ManifestError where it does not fit the specs.

    An output may be empty along a free axis (nothing found): its dtype and shape are tested then.
    """
    label = f"{directory.parent.name}/{directory.name}/{SELFTEST}"
    tensors = [
        f"{kind}.{each.name}"
        for kind, specs in (("input", inputs), ("output", outputs))
        for each in specs
    ]
    try:
        with open_plain_file(directory / SELFTEST) as file, zipfile.ZipFile(file) as archive:
            arrays = _unpacked(archive, {"tolerance", *tensors}, label)
    except UNREADABLE as error:
        raise ManifestError(f"{label} cannot be read as arrays") from error
    tolerance = arrays.get("tolerance")
    one = tolerance is not None and tolerance.ndim == 0 and tolerance.dtype.kind in "fiu"
    if tolerance is None or not one or not 0 < float(tolerance) < np.inf:
        raise ManifestError(f"{label}: tolerance must be one positive number")
    return SelfTest(
        inputs=_fitting(arrays, "input", inputs, label),
        outputs=_fitting(arrays, "output", outputs, label),
        tolerance=float(tolerance),
    )


def _unpacked(archive: zipfile.ZipFile, names: Collection[str], label: str) -> dict[str, Array]:
    """The arrays of these names, where all together unpack to MOST_BYTES at most."""
    members = {name: each for each in archive.infolist() if (name := each.filename[:-4]) in names}
    size = sum(each.file_size for each in members.values())
    if size > MOST_BYTES:
        raise ManifestError(
            f"{label} unpacks to {size} bytes, the limit is {MOST_BYTES}",
            limit=MOST_BYTES,
            received=size,
        )
    if any(each.compress_type not in PACKED for each in members.values()):
        raise ValueError("a compression that numpy does not use")
    return {
        name: np.lib.format.read_array(io.BytesIO(_member(archive, each)), allow_pickle=False)
        for name, each in members.items()
    }


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    """Read a member. Without a length, read() would unpack all of it before it counts."""
    with archive.open(member) as file:
        return file.read(member.file_size)


def _fitting(
    arrays: Mapping[str, Array], kind: str, specs: tuple[TensorSpec, ...], label: str
) -> Tensors:
    found: dict[str, Array] = {}
    for spec in specs:
        array = arrays.get(f"{kind}.{spec.name}")
        if array is None or not spec.admits(array) or (kind == "input" and not array.size):
            raise ManifestError(
                f"{label}: {kind}.{spec.name} should be {spec.dtype} {list(spec.shape)}, "
                f"received {_described(array)}"
            )
        found[spec.name] = array
    return found


def _described(array: Array | None) -> str:
    return "nothing" if array is None else f"{array.dtype} {list(array.shape)}"
