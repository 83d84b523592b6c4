"""A task in the form of a tensor model, for protocols that know only tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.contracts.tensors import Tensors, TensorSpec

STRINGS = "object"
"""The dtype of a tensor of byte strings of any length: an array of `bytes`."""


def strings_of(items: Sequence[Any], shape: tuple[int, ...]) -> NDArray[np.object_]:
    """Return an array of these objects as they are; NumPy might convert them."""
    array = np.empty(len(items), object)
    array[:] = items
    return array.reshape(shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTensors:
    """A whole pipeline as a model under /v2; Triton calls this an ensemble.

    `read` builds the pipeline's payload from the inputs and the task's own `parameters`, which are
    strings, integers, floats and booleans; it raises InputError. `write` builds the outputs from
    the pipeline's value and the same parameters.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    parameters: tuple[str, ...]
    read: Callable[[Tensors, Mapping[str, Any]], Any]
    write: Callable[[Any, Mapping[str, Any]], Tensors]
    max_bytes: int
    """Maximum bytes of a whole request, as at the task's own endpoint."""
    optional: frozenset[str] = frozenset()
    """Inputs that may be omitted."""
    opaque: frozenset[str] = frozenset()
    """Outputs whose strings are binary data, which JSON cannot represent."""
    padding: Callable[[Any], int] = lambda _value: 0
    """Padding tokens that were needed for the value, for /metrics."""
