"""Measures how well two outputs of a text detector or recogniser, or two answers of `/ocr`, agree.

Detectors and recognisers have no task of their own. The API process imports this module, so the
module imports no picture library.
"""

from collections.abc import Hashable, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paddlepool.contracts.errors import ConfigError
from paddlepool.contracts.ports import Agreement, ServedModelInfo
from paddlepool.contracts.tensors import Tensors
from paddlepool.tasks.transforms.config import (
    BoxesFromMap,
    InferenceConfig,
    TextFromClasses,
    inference_config,
)
from paddlepool.tasks.transforms.labels import is_character

NAMES = {BoxesFromMap: "common text area", TextFromClasses: "equal characters"}
"""Names of the measures, by the operation after the model."""

EDGE = 2
"""Pixels by which the edge of a text area may move without a loss of agreement. The boxes around
text are later made larger by more than this."""


def part_config(info: ServedModelInfo) -> InferenceConfig | None:
    """Return the content of a text detector's or recogniser's `inference.yml`.

    Returns None for any other model, if the file cannot be used, and for a model with several
    inputs or with more outputs than a detector (one) or a recogniser (two) has.
    """
    try:
        config = inference_config(info)
    except ConfigError:
        return None
    if config is None or len(info.inputs) != 1:
        return None
    # A recogniser returns scores, or the best class of each step and its score.
    most = {BoxesFromMap: 1, TextFromClasses: 2}.get(type(config.postprocess), 0)
    return config if len(info.outputs) <= most else None


def part_agreement(info: ServedModelInfo) -> Agreement | None:
    """Return the measure of agreement for a text detector or recogniser; None for other models.

    The measure is common_area() for a detector and equal_characters() for a recogniser. It compares
    the first output of two runs on the same input.
    """
    config = part_config(info)
    if config is None:
        return None
    output = info.outputs[0]
    after = config.postprocess

    def maps(outputs: Tensors, expected: Tensors) -> float:
        assert isinstance(after, BoxesFromMap)  # noqa: S101  chosen below
        area, reference = (
            np.asarray(tensors[output.name], np.float32) > after.thresh
            for tensors in (outputs, expected)
        )
        return common_area(area, reference)

    def characters(outputs: Tensors, expected: Tensors) -> float:
        lines, reference = (_lines(tensors[output.name]) for tensors in (outputs, expected))
        return equal_characters(lines, reference)

    return maps if isinstance(after, BoxesFromMap) else characters


def common_area(area: NDArray[np.bool_], reference: NDArray[np.bool_]) -> float:
    """Return the share of the pixels of two areas that lie in or near the other area, from 0 to 1.

    The areas have one shape (..., height, width). A pixel is near an area that has a pixel within
    EDGE rows and EDGE columns of it. Returns 1 if both areas are empty.
    """
    pixels = int(area.sum()) + int(reference.sum())
    common = (area & _grown(reference)).sum() + (reference & _grown(area)).sum()
    return float(common / pixels) if pixels else 1.0


def _grown(area: NDArray[np.bool_]) -> NDArray[np.bool_]:
    grown = area
    for axis in (-2, -1):
        moved = np.moveaxis(grown, axis, -1)
        result = moved.copy()
        for step in range(1, EDGE + 1):
            result[..., step:] |= moved[..., :-step]
            result[..., :-step] |= moved[..., step:]
        grown = np.moveaxis(result, -1, axis)
    return grown


def _lines(output: NDArray[np.generic]) -> list[list[int]]:
    """Return the class numbers of the characters of each line.

    `output` has whole numbers, the best classes (lines, steps), or scores (lines, steps, classes).
    """
    best = output.argmax(-1) if output.dtype.kind == "f" else output
    return [classes[is_character(classes)].tolist() for classes in best]


def answer_agreement(
    answer: Sequence[Mapping[str, Any]], expected: Sequence[Mapping[str, Any]]
) -> float:
    """Return the share of the characters that two answers of `/ocr` both have in the same order.

    The characters are those of the member `text` of each line. Equal lines are paired first, so a
    line that one answer lacks does not shift the others. 1 if both are empty.
    """
    lines, reference = ([line["text"] for line in lines] for lines in (answer, expected))
    own: list[str] = []
    other: list[str] = []
    for _, i, j, m, n in SequenceMatcher(None, lines, reference, autojunk=False).get_opcodes():
        pairs = zip_longest(lines[i:j], reference[m:n], fillvalue="")
        for line, partner in pairs:
            own.append(line)
            other.append(partner)
    return equal_characters(own, other)


def equal_characters(
    lines: Sequence[Sequence[Hashable]], reference: Sequence[Sequence[Hashable]]
) -> float:
    """Return the share of the characters of two texts that both have in the same order.

    A text is a sequence of lines, and a line is a string or a sequence of class numbers. Each line
    is compared with the line at its place in the other text, which has as many lines. Returns 1 if
    both are empty.
    """
    characters = sum(map(len, lines)) + sum(map(len, reference))
    equal = sum(
        block.size
        for line, other in zip(lines, reference, strict=True)
        for block in SequenceMatcher(None, line, other, autojunk=False).get_matching_blocks()
    )
    return 2 * equal / characters if characters else 1.0
