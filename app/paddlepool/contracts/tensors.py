"""Named arrays, the specification of a model's inputs and outputs, and tasks as tensor models."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
    """An input or output of a model. A size in `shape` is -1 if it is free."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    def admits(self, array: Array) -> bool:
        return array.dtype == self.dtype and self.admits_shape(array.shape)

    def admits_shape(self, shape: tuple[int, ...]) -> bool:
        """Return whether a shape has as many axes as this one and equal sizes where not free."""
        if len(shape) != len(self.shape):
            return False
        sizes = zip(self.shape, shape, strict=True)
        return not [size for expected, size in sizes if expected not in (-1, size)]


def shape_key(tensors: Tensors) -> tuple[tuple[str, str, tuple[int, ...]], ...]:
    """Return the key that jobs of one batch share: names, dtypes, and shapes without axis 0."""
    return tuple([(name, a.dtype.str, a.shape[1:]) for name, a in sorted(tensors.items())])


def all_finite(tensors: Tensors) -> bool:
    """Return whether every floating-point value is finite; other dtypes always are."""
    return all(
        array.dtype.kind != "f" or bool(np.isfinite(array).all()) for array in tensors.values()
    )


def absolute_differences(actual: Array, expected: Array) -> NDArray[np.float64]:
    """Return the absolute differences of the elements of two arrays with equal shapes."""
    with np.errstate(invalid="ignore"):  # infinity minus infinity is NaN, as it should be
        return np.abs(actual.astype(np.float64) - expected.astype(np.float64))


def largest_difference(actual: Tensors, expected: Tensors) -> float:
    """Return the largest absolute difference of a value, over the outputs that `expected` has.

    It is infinite if one of them is missing, shapes differ or a difference is NaN.
    """
    return _worst(actual, expected, lambda gaps, _: float(gaps.max(initial=0.0)))


def mean_difference(actual: Tensors, expected: Tensors) -> float:
    """Return the largest of the mean absolute differences of the outputs that `expected` has.

    For an output of integers or booleans, the share of values that differ takes the place of the
    mean, because classes have no distance. The result is infinite if an output is missing, shapes
    differ or a difference is NaN.
    """

    def mean(gaps: NDArray[np.float64], kind: str) -> float:
        return float((gaps if kind == "f" else gaps != 0).mean()) if gaps.size else 0.0

    return _worst(actual, expected, mean)


def _worst(
    actual: Tensors, expected: Tensors, measure: Callable[[NDArray[np.float64], str], float]
) -> float:
    worst = 0.0
    for name, reference in expected.items():
        array = actual.get(name)
        if array is None or array.shape != reference.shape:
            return math.inf
        measured = float(measure(absolute_differences(array, reference), reference.dtype.kind))
        worst = max(worst, math.inf if math.isnan(measured) else measured)
    return worst


STRINGS = "object"
"""The dtype of a tensor of byte strings of any length: an array of `bytes`."""


def strings_of(items: Sequence[Any], shape: tuple[int, ...]) -> NDArray[np.object_]:
    """Return an object array of this shape with these items, in C order.

    np.array() might convert the items to another type.
    """
    array = np.empty(len(items), object)
    array[:] = items
    return array.reshape(shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTensors:
    """A whole pipeline as a model under /v2; Triton calls this an ensemble.

    `read` builds the pipeline's payload from the inputs and the values of the request's
    `parameters`, which are strings, integers, floats and booleans; it raises InputError.
    `parameters` lists the names that the task knows. `write` builds the outputs from the value that
    the pipeline returns.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    parameters: tuple[str, ...]
    read: Callable[[Tensors, Mapping[str, Any]], Any]
    write: Callable[[Any], Tensors]
    max_bytes: int
    """Maximum bytes of a whole request, as at the task's own endpoint."""
    optional: frozenset[str] = frozenset()
    """Inputs that may be omitted."""
    opaque: frozenset[str] = frozenset()
    """Outputs whose strings are binary data, which JSON cannot represent."""
    padding: Callable[[Any], int] = lambda _value: 0
    """Returns the number of padding tokens that a pipeline's value required, for /metrics."""
