"""Checks inputs that a user names for a model: shapes, and arrays in .npz files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paddlepool.contracts.errors import ConfigError
from paddlepool.contracts.tensors import Array, Tensors, TensorSpec
from paddlepool.models.repository.selftest import UNREADABLE

ARRAYS = ".npz"
"""Suffix of a file with one set of inputs: an array for each input, under the input's name."""

Shapes = Mapping[str, tuple[int, ...]]
"""The shape of each input, by name."""


def check_shapes(inputs: Sequence[TensorSpec], shapes: Mapping[str, Any], *, source: str) -> Shapes:
    """Return the shapes as tuples. Raises ConfigError, which names `source`.

    It is raised if the names are not those of `inputs`, or a shape does not fit its input.
    """
    names = [spec.name for spec in inputs]
    if sorted(shapes) != sorted(names):
        raise ConfigError(
            f"{source} names {', '.join(sorted(shapes)) or 'no input'}; "
            f"the program takes {', '.join(names)}"
        )
    for spec in inputs:
        if not spec.admits_shape(tuple(shapes[spec.name])):
            raise ConfigError(
                f"{source}: {spec.name} of shape {list(shapes[spec.name])} does not fit "
                f"{list(spec.shape)} (-1 is free)"
            )
    return {name: tuple(shapes[name]) for name in names}


def read_input(path: Path, inputs: Sequence[TensorSpec]) -> Tensors:
    """Read one set of inputs from an .npz file.

    Raises ConfigError if the file cannot be read or its arrays do not fit `inputs`. Arrays are
    converted to the dtypes of `inputs`, such as float64 to float32 or int64 to float32, but floats
    not to integers.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays: dict[str, Array] = {name: archive[name] for name in archive.files}
    except (*UNREADABLE, AttributeError) as error:  # a .npy file is an array without files
        raise ConfigError(f"{path.name} cannot be read as arrays by name (.npz)") from error
    check_shapes(inputs, {name: array.shape for name, array in arrays.items()}, source=path.name)
    fitting = {}
    for spec in inputs:
        array = arrays[spec.name]
        if not np.can_cast(array.dtype, spec.dtype, "same_kind"):
            raise ConfigError(
                f"{path.name}: {spec.name} should be {spec.dtype}, received {array.dtype}"
            )
        fitting[spec.name] = array.astype(spec.dtype)
    return fitting


def only_input(array: Array, inputs: Sequence[TensorSpec]) -> Tensors:
    """Return `array` as the inputs of a program that has a single input.

    It is converted to the input's dtype. Raises ConfigError if the program has several, or the
    array does not fit.
    """
    if len(inputs) != 1:
        raise ConfigError(
            f"the program has {len(inputs)} inputs ({', '.join(spec.name for spec in inputs)}); "
            "only one with a single input takes a picture"
        )
    [spec] = inputs
    check_shapes(inputs, {spec.name: array.shape}, source="the prepared picture")
    return {spec.name: array.astype(spec.dtype)}
