"""Named arrays, and the specification of a model's inputs and outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

DTYPES: tuple[str, ...] = (
    "bool", "uint8", "int8", "int32", "int64", "float16", "float32", "float64",
)  # fmt: skip
"""Dtypes that Paddle Inference supports; it lacks int16 and returns bfloat16 as garbage."""

Array = NDArray[np.generic]
Tensors = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output. An axis of `shape` is -1 if its size is free; axis 0 is the batch."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    def admits(self, array: Array) -> bool:
        return array.dtype == np.dtype(self.dtype) and self.admits_shape(array.shape)

    def admits_shape(self, shape: tuple[int, ...]) -> bool:
        return len(shape) == len(self.shape) and all(
            want in (-1, got) for want, got in zip(self.shape, shape, strict=True)
        )


def shape_key(tensors: Tensors) -> tuple[tuple[str, str, tuple[int, ...]], ...]:
    """Return the key that jobs of one batch share: names, dtypes and all axes but the first."""
    return tuple((name, a.dtype.str, a.shape[1:]) for name, a in sorted(tensors.items()))


def all_finite(tensors: Tensors) -> bool:
    """Return whether no floating-point value is NaN or infinite."""
    return all(
        array.dtype.kind != "f" or bool(np.isfinite(array).all()) for array in tensors.values()
    )


def absolute_differences(found: Array, expected: Array) -> NDArray[np.float64]:
    """Return the absolute differences of two arrays of one shape."""
    with np.errstate(invalid="ignore"):  # infinity minus infinity is NaN, as it should be
        return np.abs(found.astype(np.float64) - expected.astype(np.float64))


def largest_difference(found: Tensors, expected: Tensors) -> float:
    """Return the largest absolute difference; infinite if shapes differ or a difference is NaN."""
    return _worst(found, expected, lambda gaps: gaps.max(initial=0.0))


def mean_difference(found: Tensors, expected: Tensors) -> float:
    """Return the largest mean absolute difference of an output, which is what budgets limit.

    Infinite if shapes differ or a difference is NaN.
    """
    return _worst(found, expected, lambda gaps: gaps.mean() if gaps.size else 0.0)


def _worst(
    found: Tensors, expected: Tensors, measure: Callable[[NDArray[np.float64]], float]
) -> float:
    """Return the largest `measure` of the absolute differences of any output."""
    worst = 0.0
    for name, reference in expected.items():
        array = found.get(name)
        if array is None or array.shape != reference.shape:
            return math.inf
        measured = float(measure(absolute_differences(array, reference)))
        worst = max(worst, math.inf if math.isnan(measured) else measured)
    return worst
