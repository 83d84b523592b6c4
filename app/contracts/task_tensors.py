"""A task as a model of tensors: what it takes and gives where a client speaks of nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.contracts.tensors import Tensors, TensorSpec

STRINGS = "object"
"""The dtype of a tensor of byte strings, each of its own length: an array of `bytes`."""


def strings_of(items: Sequence[Any], shape: tuple[int, ...]) -> NDArray[np.object_]:
    """An array of these objects, never of what NumPy would make of them."""
    array = np.empty(len(items), object)
    array[:] = items
    return array.reshape(shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTensors:
    """A whole pipeline under /v2: an ensemble, in Triton's words.

    `read` makes the pipeline's payload of the inputs and of the task's own `parameters`, which are
    strings, integers, floats and booleans; raises InputError. `write` makes the outputs of the
    pipeline's value and the same parameters.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    parameters: tuple[str, ...]
    read: Callable[[Tensors, Mapping[str, Any]], Any]
    write: Callable[[Any, Mapping[str, Any]], Tensors]
    max_bytes: int
    """Limit of a whole request, as at the task's own endpoint."""
    optional: frozenset[str] = frozenset()
    """Inputs that may be left out."""
    opaque: frozenset[str] = frozenset()
    """Outputs whose strings are no text, so that JSON cannot hold them."""
    padding: Callable[[Any], int] = lambda _value: 0
    """Tokens of padding that the value cost, for /metrics."""
