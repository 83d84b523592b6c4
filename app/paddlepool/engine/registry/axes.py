"""Rules of config.toml for the free axes of inputs: equal sizes, and sizes that are padded."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from paddlepool.contracts.errors import ConfigError, InvalidTensor
from paddlepool.contracts.tensors import Array, Tensors, TensorSpec
from paddlepool.models.repository.config import ModelConfig

PADDED_BYTES = 64 << 20
"""Bytes up to which tensors may be padded; above, they may at most double in size. Without this
limit, a small request with a size of 1 on a ragged axis could take `step` times its bytes."""


def free_axes(inputs: Sequence[TensorSpec]) -> dict[str, tuple[str, int]]:
    """Map the name of each free axis in config.toml, such as `x.1`, to its input and number."""
    return {
        f"{spec.name}.{axis}": (spec.name, axis)
        for spec in inputs
        for axis, size in enumerate(spec.shape)
        if size == -1
    }


class EqualAxes:
    """Input axes that must have the same size in a request, such as those of a text's ids and mask.

    Each of the `groups` lists such axes by their names, `input.number`. Not every framework checks
    the sizes: one reads past the end of the shorter tensor and raises no error.
    """

    def __init__(self, groups: Sequence[Sequence[str]], inputs: Sequence[TensorSpec]) -> None:
        """Look up the axes. Raises ConfigError if one is not in the inputs or has a fixed size."""
        free = free_axes(inputs)
        for axis_name in (name for group in groups for name in group):
            if axis_name not in free:
                raise ConfigError(
                    f"equal_axes names {axis_name!r}, the free axes of the inputs are "
                    f"{', '.join(sorted(free)) or 'none'}"
                )
        self._groups = [[free[name] for name in group] for group in groups]

    def check(self, tensors: Tensors) -> None:
        """Raise InvalidTensor if axes that must be equal differ. The tensors must fit the model."""
        for group in self._groups:
            sizes = {(name, axis): tensors[name].shape[axis] for name, axis in group}
            if len(set(sizes.values())) > 1:
                text = ", ".join(f"axis {k} of {n!r} has {size}" for (n, k), size in sizes.items())
                raise InvalidTensor(f"inputs do not go together: {text}; these must be equal")


class RaggedAxes:
    """Input axes that are padded with zeros at their end, to the next multiple of a step.

    Rows of different sizes can then share a run, and an axis has at most `max / step` sizes.
    Backends keep memory for each shape, so this also limits the memory of a predictor.
    """

    def __init__(self, config: ModelConfig, inputs: Sequence[TensorSpec]) -> None:
        """Look up the axes of each [[ragged]].

        Raises ConfigError if an axis is not in the inputs, has a fixed size or occurs twice, or if
        axes that must be equal (`equal_axes`) are not padded in the same way.
        """
        free = free_axes(inputs)
        self._steps: dict[str, dict[int, tuple[int, int]]] = {}
        by_name: dict[str, tuple[int, int]] = {}
        for ragged in config.ragged:
            axis_name = f"{ragged.input}.{ragged.axis}"
            if axis_name not in free:
                others = sorted(name for name, (_, axis) in free.items() if axis)
                raise ConfigError(
                    f"ragged names axis {ragged.axis} of input {ragged.input!r}, the free axes "
                    f"after the first are {', '.join(others) or 'none'}"
                )
            if axis_name in by_name:
                raise ConfigError(f"ragged names {axis_name!r} twice")
            by_name[axis_name] = ragged.step, ragged.max
            self._steps.setdefault(ragged.input, {})[ragged.axis] = by_name[axis_name]
        for group in config.equal_axes:
            if len({by_name.get(axis_name) for axis_name in group}) > 1:
                raise ConfigError(
                    f"equal_axes {', '.join(group)}: all of them or none must be ragged, with the "
                    "same step and max"
                )

    def padded_shape(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the input `name` after padding; `shape` need not fit the model."""
        if name not in self._steps:
            return shape
        sizes = list(shape)
        for axis, (step, _) in self._steps[name].items():
            if axis < len(sizes):
                sizes[axis] = -(-sizes[axis] // step) * step
        return tuple(sizes)

    def nbytes(self, tensors: Tensors) -> int:
        """Return the total bytes of tensors after padding; they need not fit the model."""
        if not self._steps:
            return sum([array.nbytes for array in tensors.values()])
        return sum(
            [
                math.prod(self.padded_shape(name, array.shape)) * array.dtype.itemsize
                for name, array in tensors.items()
            ]
        )

    def check(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Raise InvalidTensor if a size exceeds the maximum of its axis.

        The shapes must fit the model.
        """
        for name, steps in self._steps.items():
            for axis, (_, limit) in steps.items():
                if (size := shapes[name][axis]) > limit:
                    raise InvalidTensor(
                        f"axis {axis} of input {name!r} has size {size}, limit {limit}",
                        limit=limit,
                        received=size,
                    )

    def pad(self, tensors: Tensors) -> Tensors:
        """Return the tensors, padded; an array that needs no padding is not copied.

        The tensors must fit the model. Raises InvalidTensor if a size exceeds the maximum of its
        axis, or if padding more than doubles the tensors, to more than PADDED_BYTES.
        """
        if not self._steps:
            return tensors
        self.check({name: array.shape for name, array in tensors.items()})
        before = sum(array.nbytes for array in tensors.values())
        if (total := self.nbytes(tensors)) > (limit := max(PADDED_BYTES, 2 * before)):
            raise InvalidTensor(
                f"the inputs have {total} bytes after padding, limit {limit}",
                limit=limit,
                received=total,
            )
        return {
            name: _padded(array, self.padded_shape(name, array.shape))
            for name, array in tensors.items()
        }


def _padded(array: Array, shape: tuple[int, ...]) -> Array:
    if array.shape == shape:
        return array
    padded = np.zeros(shape, array.dtype)
    padded[tuple(map(slice, array.shape))] = array
    return padded
