"""selftest.npz: the golden input and output that prove a predictor computes what it should."""

from __future__ import annotations

import io
import math
import os
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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
MOST_BYTES = 256 << 20
"""Most bytes of all arrays together, whatever the model's tensors are: the server's own process
unpacks them."""
ROWS, LENGTH, LEAST_BYTES = 16, 2048, 1 << 20
"""Largest size of a free first axis, and of any other free axis, in a self-test. Every tensor may
have LEAST_BYTES, even if these sizes give less."""
ZIP_BYTES = 1 << 20
"""Most bytes of an archive in addition to its arrays."""
NPY_BYTES = 1024
"""Most bytes that describe an array in its file."""
PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
UNREADABLE = (
    OSError, TypeError, ValueError, EOFError, MemoryError, RuntimeError,
    zipfile.BadZipFile, zlib.error,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """How far outputs are from the golden ones.

    The absolute differences, the largest and the mean, are each those of the worst output.
    `agreement` is how far the outputs mean the same to the task, from 0 to 1.
    """

    largest_difference: float
    mean_difference: float
    agreement: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTest:
    """One input, its expected output, and how far other outputs may be from it.

    The limit is `tolerance`, the largest absolute difference, or instead the `budget` of a lower
    precision if there is one. `agreement` is the measure of the model's task, `program` the derived
    program that is tested.
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
        self, open_predictor: PredictorFactory, spec: PredictorSpec, *, timeout: float
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
        self._check_shapes(found)
        if self.budget is None:
            self._check_tolerance(found)
        else:
            self._check_budget(self.budget, self.quality(found))

    def quality(self, found: Tensors) -> Quality:
        """The quality of outputs that have the shapes of the golden ones."""
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
                f"the expected values, the budget is {mean:.3g}{self._cause()}",
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
                f"the budget is {least:.3f}{self._cause()}",
                limit=least,
                received=quality.agreement,
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

    That is checked before any array is unpacked. An output may be empty along a free axis (nothing
    found): then only its dtype and shape are tested.
    """
    label = f"{directory.parent.name}/{directory.name}/{SELFTEST}"
    limit = min(MOST_BYTES, sum(map(_most_bytes, (*inputs, *outputs))))
    try:
        with open_plain_file(directory / SELFTEST) as file:
            _check_bytes(os.fstat(file.fileno()).st_size, limit + ZIP_BYTES, f"{label} has")
            with zipfile.ZipFile(file) as archive:
                found = {each.filename.removesuffix(".npy"): each for each in archive.infolist()}
                golden = [
                    {spec.name: _member(archive, found, kind, spec, label) for spec in specs}
                    for kind, specs in (("input", inputs), ("output", outputs))
                ]
                size = sum(each.file_size for members in golden for each in members.values())
                _check_bytes(size, limit, f"{label} unpacks to")
                tolerance = _tolerance(archive, found, label)
                given, expected = (
                    {name: _array(archive, member) for name, member in members.items()}
                    for members in golden
                )
    except UNREADABLE as error:
        raise ManifestError(f"{label} cannot be read as arrays") from error
    return SelfTest(inputs=given, outputs=expected, tolerance=tolerance)


def _most_bytes(spec: TensorSpec) -> int:
    free = [ROWS] + [LENGTH] * len(spec.shape)
    axes = [free[axis] if size == -1 else size for axis, size in enumerate(spec.shape)]
    return NPY_BYTES + max(LEAST_BYTES, math.prod(axes) * np.dtype(spec.dtype).itemsize)


def _check_bytes(size: int, limit: int, what: str) -> None:
    if size > limit:
        raise ManifestError(
            f"{what} {size} bytes, the limit is {limit}", limit=limit, received=size
        )


def _member(
    archive: zipfile.ZipFile,
    members: Mapping[str, zipfile.ZipInfo],
    kind: str,
    spec: TensorSpec,
    label: str,
) -> zipfile.ZipInfo:
    """The member with this tensor, checked by its header. Raises ManifestError if it is none."""
    name, received = f"{kind}.{spec.name}", "nothing"
    if member := members.get(name):
        shape, dtype = _header(archive, member)
        fits = dtype == np.dtype(spec.dtype) and spec.admits_shape(shape)
        if fits and (kind == "output" or 0 not in shape):
            return member
        received = f"{dtype} {list(shape)}"
    raise ManifestError(
        f"{label}: {name} should be {spec.dtype} {list(spec.shape)}, received {received}"
    )


def _tolerance(
    archive: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo], label: str
) -> float:
    if member := members.get("tolerance"):
        shape, dtype = _header(archive, member)
        if shape == () and dtype.kind in "fiu":
            value = float(_array(archive, member))
            if 0 < value < np.inf:
                return value
    raise ManifestError(f"{label}: tolerance must be one positive number")


def _header(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo
) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Read the shape and dtype of an array without unpacking it.

    Raises ValueError if the member does not have the size of such an array.
    """
    if member.compress_type not in PACKED:
        raise ValueError("a compression that numpy does not use")
    with archive.open(member) as file:
        if np.lib.format.read_magic(file) != (1, 0):  # later versions have headers of any length
            raise ValueError("a format that numpy does not use for numbers")
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        if member.file_size != file.tell() + math.prod(shape) * dtype.itemsize:
            raise ValueError("a size that is not the array's")
    return shape, dtype


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
    """Unpack a member. Without a length, read() would unpack everything before it counts."""
    with archive.open(member) as file:
        unpacked = io.BytesIO(file.read(member.file_size))
    return np.lib.format.read_array(unpacked, allow_pickle=False)


def _described(array: Array | None) -> str:
    return "nothing" if array is None else f"{array.dtype} {list(array.shape)}"
