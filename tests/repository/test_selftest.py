"""The golden test of a version: what may be in it, and what it finds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.contracts.errors import BackendError, ManifestError
from app.contracts.tensors import Array, TensorSpec
from app.repository.selftest import SelfTest, read_selftest

INPUTS = (TensorSpec("x", "float32", (-1, 2)),)
BOXES = TensorSpec("boxes", "int64", (-1, 4))
X = np.ones((1, 2), np.float32)
NONE = np.zeros((0, 4), np.int64)


@dataclass(frozen=True)
class Answering:
    """A predictor that always gives the same; only run() is ever called here."""

    outputs: Mapping[str, Array]

    def run(self, _inputs: Mapping[str, Array], *, timeout: float) -> Mapping[str, Array]:
        assert timeout > 0
        return self.outputs


def written(directory: Path, *, x: Array = X, boxes: Array = NONE) -> Path:
    arrays: dict[str, Any] = {"input.x": x, "output.boxes": boxes}
    np.savez(directory / "selftest.npz", tolerance=np.float64(0.1), **arrays)
    return directory


def test_an_output_may_be_empty_along_a_free_axis(tmp_path: Path) -> None:
    """Then its dtype and shape are the test."""
    test = read_selftest(written(tmp_path), INPUTS, (BOXES,))
    test.check(Answering({"boxes": NONE}), timeout=1)  # type: ignore[arg-type]
    for wrong, described in (
        (np.zeros((1, 4), np.int64), r"int64 \[1, 4\]"),
        (np.zeros((0, 4), np.float32), r"float32 \[0, 4\]"),
    ):
        with pytest.raises(BackendError, match=rf"int64 \[0, 4\], received {described}"):
            test.check(Answering({"boxes": wrong}), timeout=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arrays", "outputs", "named"),
    [
        ({}, TensorSpec("boxes", "int64", (1, 4)), r"output.boxes should be int64 \[1, 4\]"),
        ({"x": X[:0]}, BOXES, r"input.x should be float32 \[-1, 2\], received float32 \[0, 2\]"),
        ({"boxes": NONE.astype(np.int32)}, BOXES, r"received int32 \[0, 4\]"),
    ],
    ids=["a fixed axis", "an empty input", "another dtype"],
)
def test_what_proves_nothing_is_refused(
    arrays: Mapping[str, Array], outputs: TensorSpec, named: str, tmp_path: Path
) -> None:
    """An empty output where the size is fixed, and an empty input anywhere."""
    with pytest.raises(ManifestError, match=named):
        read_selftest(written(tmp_path, **arrays), INPUTS, (outputs,))


def test_an_output_of_another_dtype_is_found() -> None:
    """However near its values are: /v2 promises the dtype as well."""
    test = SelfTest(inputs={"x": X}, outputs={"y": X}, tolerance=1.0)
    test.check(Answering({"y": X}), timeout=1)  # type: ignore[arg-type]
    with pytest.raises(BackendError, match=r"float32 \[1, 2\], received float64 \[1, 2\]"):
        test.check(Answering({"y": X.astype(np.float64)}), timeout=1)  # type: ignore[arg-type]
