"""Shapes in config.toml: the warm-ups that run before a predictor serves, and equal axes."""

from collections.abc import Sequence

import numpy as np

from app.contracts.errors import ConfigError, InvalidTensor
from app.contracts.tensors import Array, Tensors, TensorSpec
from app.models.repository.config import ModelConfig


def warmup_inputs(config: ModelConfig, inputs: tuple[TensorSpec, ...]) -> tuple[Tensors, ...]:
    """One set of tensors for each [[warmup]], smallest first, filled with ones.

    One row each is enough: the first run of a shape is slow (oneDNN prepares its primitives,
    30-60 ms for the emotion model), but the first full batch of a warm shape costs at most 20 ms
    more than the next.

    Raises ConfigError if a shape does not fit the model's inputs.
    """
    runs: list[Tensors] = []
    for warmup in config.warmup:
        unknown = set(warmup.shapes) ^ {spec.name for spec in inputs}
        if unknown:
            raise ConfigError(
                f"warmup shapes must name {', '.join(spec.name for spec in inputs)}; "
                f"these are unknown or missing: {', '.join(sorted(unknown))}"
            )
        arrays: dict[str, Array] = {}
        for spec in inputs:
            array = np.ones(warmup.shapes[spec.name], spec.dtype)
            if not spec.admits(array):
                raise ConfigError(
                    f"warmup shape {list(array.shape)} does not fit input {spec.name!r} "
                    f"of shape {list(spec.shape)}"
                )
            arrays[spec.name] = array
        runs.append(arrays)
    return tuple(sorted(runs, key=lambda run: sum(array.nbytes for array in run.values())))


class EqualAxes:
    """Input axes that must have the same size in a request, such as a text's ids and its mask.

    Each axis is written `input.number`. Not every framework checks the sizes: one of them reads
    past the end of the shorter tensor and returns an answer.
    """

    def __init__(self, groups: Sequence[Sequence[str]], inputs: Sequence[TensorSpec]) -> None:
        """Raises ConfigError if an axis does not exist in the inputs or has a fixed size."""
        self._groups = tuple(tuple(_axis(name, inputs) for name in group) for group in groups)

    def check(self, tensors: Tensors) -> None:
        """Raise InvalidTensor if the axes differ; each tensor must already fit its input."""
        for group in self._groups:
            sizes = [tensors[name].shape[axis] for name, axis in group]
            if len(set(sizes)) > 1:
                found = ", ".join(
                    f"axis {axis} of {name!r} has {size}"
                    for (name, axis), size in zip(group, sizes, strict=True)
                )
                raise InvalidTensor(f"inputs do not go together: {found}; these must be equal")


def _axis(written: str, inputs: Sequence[TensorSpec]) -> tuple[str, int]:
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
            f"{', '.join(sorted(free)) or 'none'}"
        )
    return name, int(number)
