"""Named arrays, and the description a model gives of those it takes and returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

DTYPES: tuple[str, ...] = (
    "bool", "uint8", "int8", "int32", "int64", "float16", "float32", "float64",
)  # fmt: skip
"""What Paddle Inference takes and hands over: it has no int16, and gives bfloat16 as garbage."""

Array = NDArray[np.generic]
Tensors = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output: `shape` has -1 where the size is free; the first axis is the batch."""

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
    """What two jobs must share to run in one batch: names, dtypes and all axes but the first."""
    return tuple((name, a.dtype.str, a.shape[1:]) for name, a in sorted(tensors.items()))
