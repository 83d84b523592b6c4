"""The runs a predictor makes before it may serve, one for each configured shape."""

from __future__ import annotations

import numpy as np

from app.contracts.errors import ConfigError
from app.contracts.tensors import Array, Tensors, TensorSpec
from app.repository.config import ModelConfig


def warmup_inputs(config: ModelConfig, inputs: tuple[TensorSpec, ...]) -> tuple[Tensors, ...]:
    """One set of tensors for each [[warmup]], smallest first, filled with ones.

    One row each is enough: what is slow is a shape's first run (oneDNN prepares its primitives,
    30-60 ms for the emotion model), while the first full batch of a warm shape costs at most
    20 ms more than the next.

    Raises ConfigError where a shape does not fit the model's inputs.
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
