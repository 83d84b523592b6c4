"""Inputs of a program's trial: their shapes, from several sources, and their values.

An engine may be right on inputs of a special kind, for example of size 1, without negative numbers,
or with equal rows, and wrong on others. A trial therefore needs several inputs that have none of
these peculiarities (docs/decisions/0058).
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paddlepool.contracts.errors import ConfigError
from paddlepool.contracts.tensors import Array, Tensors, TensorSpec
from paddlepool.models.repository.inputs import Shapes, check_shapes

Sizes = tuple[int, ...]
"""Sizes of the free axes of each input, from the second axis on."""

UNUSABLE = (OSError, LookupError, TypeError, ValueError, StopIteration, ConfigError)
INFERENCE_YML = "inference.yml"
"""File in which PaddleX, PaddleOCR and others describe an exported model."""

LARGEST = 8.0
SPREAD = 2.5
"""Standard deviation of floating-point inputs of both signs; LARGEST is their largest size."""

REALISTIC: Mapping[bool, tuple[Sizes, ...]] = {
    True: ((320, 480), (320, 320), (224, 224)),
    False: ((64, 48, 40), (64, 64, 64)),
}
"""Sizes for pictures (True) and for all other inputs, in the order in which they are tried. SECOND,
ODD and LAST_RESORT have the same form."""

SECOND: Mapping[bool, tuple[Sizes, ...]] = {
    True: ((224, 256), (256, 256), (96, 96)),
    False: ((24, 20, 28), (24, 24, 24)),
}
ODD: Mapping[bool, tuple[Sizes, ...]] = {
    True: ((33, 37), (33, 33), (64, 96), (64, 64)),
    False: ((7, 9, 11), (7, 7, 7), (12, 12, 12)),
}
"""Sizes that windows and factors do not divide evenly, and then, if all are refused, small even
ones."""

LAST_RESORT: Mapping[bool, tuple[Sizes, ...]] = {
    True: ((32,), (8,), (5,), (1,)),
    False: ((32,), (8,), (5,), (1,), (2048,)),  # short sound is refused or gives empty outputs
}


def is_picture(inputs: Sequence[TensorSpec]) -> bool:
    """Return whether one of the inputs looks like pictures of a free size, of 1, 3 or 4 channels.

    Pictures have four axes; the second or the last one has the channels. An input with two axes of
    size 1, not counting the first axis, is not taken for pictures: it may be the mask of a text.
    """
    return any(
        len(spec.shape) == 4
        and -1 in spec.shape[1:]
        and {spec.shape[1], spec.shape[3]} & {1, 3, 4}
        and spec.shape[1:].count(1) < 2
        for spec in inputs
    )


def filled_shapes(inputs: Sequence[TensorSpec], sizes: Sizes, *, rows: int) -> Shapes:
    """Return the inputs' shapes: `rows` for a free first axis, `sizes` for the other free axes.

    Each input takes the sizes from the first on, and repeats the last one. So inputs with equally
    many free axes get equal sizes, as the tokens and the mask of a text must.
    """
    shapes = {}
    for spec in inputs:
        free = 0
        shape = []
        for axis, size in enumerate(spec.shape):
            if size == -1 and axis > 0:
                size = sizes[min(free, len(sizes) - 1)]
                free += 1
            shape.append(rows if size == -1 else size)
        shapes[spec.name] = tuple(shape)
    return shapes


def has_free_sizes(inputs: Sequence[TensorSpec]) -> bool:
    """Return whether an axis other than the first is free in some input."""
    return any(-1 in spec.shape[1:] for spec in inputs)


def parse_shapes(written: Sequence[str]) -> Shapes:
    """Parse texts `NAME=SIZE,SIZE,…`, one for each input. Raises ConfigError for another form."""
    shapes = {}
    for text in written:
        name, _, sizes = text.rpartition("=")
        numbers = sizes.split(",")
        if not name or not all(number.isdecimal() and int(number) > 0 for number in numbers):
            raise ConfigError(f"--shape takes NAME=SIZE,SIZE,… of sizes from 1, received {text!r}")
        shapes[name] = tuple(map(int, numbers))
    return shapes


def described_shapes(directory: Path, inputs: Sequence[TensorSpec]) -> list[Shapes]:
    """Return the usual and the smallest shapes in the directory's inference.yml, or an empty list.

    The file lists the smallest, usual and largest shape of each input for TensorRT. The largest is
    left out, because a run with it may take minutes. The list is empty if the file is missing or
    unreadable, lists no shapes, or lists one that does not fit the inputs.
    """
    import yaml

    path = directory / INFERENCE_YML
    try:
        content = yaml.safe_load(path.read_text("utf-8"))
        backends = content["Hpi"]["backend_configs"]
        ranges = next(
            backend["trt_dynamic_shapes"]
            for backend in (backends["paddle_infer"], *backends.values())
            if backend and "trt_dynamic_shapes" in backend
        )
        described = [{name: sizes[place] for name, sizes in ranges.items()} for place in (1, 0)]
        return [check_shapes(inputs, shapes, source=INFERENCE_YML) for shapes in described]
    except (*UNUSABLE, yaml.YAMLError):
        return []


def values(
    inputs: Sequence[TensorSpec],
    shapes: Shapes,
    *,
    seed: int,
    both_signs: bool,
    below: Mapping[str, int],
) -> dict[str, Array]:
    """Return random arrays of these shapes, by the input's name; equal seeds give equal values.

    Floating-point numbers are from 0 to 1 or, if `both_signs`, have a normal distribution that is
    cut off at LARGEST in size. Integers are at least 0 and less than `below[name]`, and the last
    element is the largest of these.
    """
    random = np.random.default_rng(seed)
    arrays = {}
    for spec in inputs:
        shape = shapes[spec.name]
        array: Array
        if spec.dtype.startswith("float"):
            array = random.random(shape)
            if both_signs:
                array = np.clip(random.normal(0.0, SPREAD, shape), -LARGEST, LARGEST)
        elif spec.dtype == "bool":
            array = random.integers(0, 2, shape)
        else:
            high = below[spec.name]
            array = random.integers(0, high, shape)
            array.flat[-1:] = high - 1
        arrays[spec.name] = array.astype(spec.dtype)
    return arrays


SIMILAR = 2.0**-8
"""How much larger each number of a similar row is."""


def contrasts(inputs: Sequence[TensorSpec], row: Tensors) -> list[tuple[Tensors, Tensors]]:
    """Return pairs of rows that a program whose rows are not independent treats unlike single ones.

    A program that decides something by the mean or the largest value of a batch shows it where
    `row` stands beside one of opposite, or of small values. One that compares rows, to count those
    that are close to each other or to suppress all but one, shows it in two equal rows, and in two
    similar ones whose numbers ascend, as those of a box do.
    """
    opposite: dict[str, Array] = {}
    small: dict[str, Array] = {}
    ascending: dict[str, Array] = {}
    similar: dict[str, Array] = {}
    for spec in inputs:
        array: Any = row[spec.name]
        sorted_row: Any = np.sort(array, axis=-1) if array.ndim > 1 else array
        ascending[spec.name] = similar[spec.name] = sorted_row
        if spec.dtype.startswith("float"):
            opposite[spec.name], small[spec.name] = -array, (array / 64).astype(spec.dtype)
            similar[spec.name] = (sorted_row + SIMILAR).astype(spec.dtype)
        elif spec.dtype == "bool":
            opposite[spec.name], small[spec.name] = ~array, np.zeros_like(array)
        else:
            opposite[spec.name], small[spec.name] = array.max() - array, np.zeros_like(array)
    return [(row, opposite), (row, small), (row, row), (ascending, similar)]


def joined(first: Tensors, second: Tensors) -> Tensors:
    """Concatenate two sets of inputs along the first axis."""
    return {name: np.concatenate([first[name], second[name]]) for name in first}


def nbytes(*tensors: Tensors) -> int:
    return sum(array.nbytes for arrays in tensors for array in arrays.values())


def integer_inputs(inputs: Iterable[TensorSpec]) -> list[str]:
    """Return the names of the integer inputs, those that are neither floating-point nor bool."""
    return [spec.name for spec in inputs if not spec.dtype.startswith(("float", "bool"))]
