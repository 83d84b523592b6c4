"""selftest.npz: the golden input and output that prove a predictor computes what it should."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from app.contracts.errors import BackendError, ManifestError
from app.contracts.ports import Predictor
from app.contracts.tensors import Array, Tensors, TensorSpec
from app.repository.plain_files import open_plain_file

SELFTEST = "selftest.npz"


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTest:
    """One input, the output it must give, and the largest absolute difference allowed."""

    inputs: Tensors
    outputs: Tensors
    tolerance: float

    def within(self, tolerance: float | None) -> SelfTest:
        """The same test with another tolerance; None keeps this one's."""
        return self if tolerance is None else replace(self, tolerance=tolerance)

    def check(self, predictor: Predictor, *, timeout: float) -> None:
        """Run it once. Raises BackendError where an output is missing, misshapen or wrong."""
        found = predictor.run(self.inputs, timeout=timeout)
        for name, expected in self.outputs.items():
            array = found.get(name)
            if array is None or (array.dtype, array.shape) != (expected.dtype, expected.shape):
                raise BackendError(
                    f"self-test: output {name!r} should be {_described(expected)}, "
                    f"received {_described(array)}"
                )
            difference = np.abs(array.astype(np.float64) - expected.astype(np.float64))
            worst = float(difference.max(initial=0.0))
            # `not <=` rather than `>`: a NaN must fail.
            if not worst <= self.tolerance:
                raise BackendError(
                    f"self-test: output {name!r} differs by {worst:.3g} from the expected values, "
                    f"limit {self.tolerance:.3g}",
                    limit=self.tolerance,
                    received=worst,
                )


def read_selftest(
    directory: Path, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]
) -> SelfTest:
    """Read a version's self-test. Raises ManifestError where it does not fit the specs.

    An output may be empty along a free axis (nothing found): its dtype and shape are tested then.
    """
    label = f"{directory.parent.name}/{directory.name}/{SELFTEST}"
    try:
        with (
            open_plain_file(directory / SELFTEST) as file,
            np.load(file, allow_pickle=False) as archive,
        ):
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise ManifestError(f"{label} cannot be read as arrays") from error
    tolerance = arrays.get("tolerance")
    if tolerance is None or tolerance.ndim != 0 or not 0 < float(tolerance) < np.inf:
        raise ManifestError(f"{label}: tolerance must be one positive number")
    return SelfTest(
        inputs=_fitting(arrays, "input", inputs, label),
        outputs=_fitting(arrays, "output", outputs, label),
        tolerance=float(tolerance),
    )


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
