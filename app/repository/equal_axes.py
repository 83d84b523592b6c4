"""Axes of inputs that must have one size in a request, as a text's ids and its mask have.

Not every engine looks: one reads beyond the end of the shorter tensor and answers.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.contracts.errors import ConfigError, InvalidTensor
from app.contracts.tensors import Tensors, TensorSpec

Axis = tuple[str, int]


class EqualAxes:
    """The groups of `equal_axes` in config.toml, each axis as `input.number`."""

    def __init__(self, groups: Sequence[Sequence[str]], inputs: Sequence[TensorSpec]) -> None:
        """Raises ConfigError where an axis is none of the inputs', or has a size of its own."""
        self._groups = tuple(tuple(_axis(name, inputs) for name in group) for group in groups)

    def check(self, tensors: Tensors) -> None:
        """`tensors` fit the inputs one by one. Raises InvalidTensor where these axes differ."""
        for group in self._groups:
            sizes = [tensors[name].shape[axis] for name, axis in group]
            if len(set(sizes)) > 1:
                found = ", ".join(
                    f"axis {axis} of {name!r} has {size}"
                    for (name, axis), size in zip(group, sizes, strict=True)
                )
                raise InvalidTensor(f"inputs do not go together: {found}; these must be equal")


def _axis(written: str, inputs: Sequence[TensorSpec]) -> Axis:
    name, _, number = written.rpartition(".")
    free = {
        f"{spec.name}.{axis}"
        for spec in inputs
        for axis, size in enumerate(spec.shape)
        if size == -1
    }
    if written not in free:
        raise ConfigError(
            f"equal_axes names {written!r}, the free axes of the inputs are "
            f"{', '.join(sorted(free)) or 'none'}",
            received=written,
        )
    return name, int(number)
