"""Agreement of two outputs of a text detector or recogniser: models without a task of their own.

The API process uses this module, too, so it imports no picture library.
"""

from collections.abc import Sequence
from difflib import SequenceMatcher

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
"""What is measured, by the operation after the model."""

EDGE = 2
"""Pixels by which the edge of a text area may move: boxes are made larger afterwards by more."""


def part_config(info: ServedModelInfo) -> InferenceConfig | None:
    """Return what a text detector's or recogniser's file says; None for any other model.

    A file that cannot be used does not matter: the model is served as tensors.
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
    """Return the measure for a detector's maps or a recogniser's classes; None for other models."""
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
    """Return the share of two areas (..., height, width) that lies in or near the other one.

    A pixel is near if an area has a pixel within EDGE rows and columns of it. 1 if both are empty.
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
    """Return the class numbers of each line's characters, from classes (lines, steps) or scores."""
    best = output.argmax(-1) if output.dtype.kind == "f" else output
    return [classes[is_character(classes)].tolist() for classes in best]


def equal_characters(lines: Sequence[Sequence[int]], reference: Sequence[Sequence[int]]) -> float:
    """Return the share of the characters of two texts that both have in the same order.

    A text is lines of characters. 1 if both texts are empty.
    """
    characters = sum(map(len, lines)) + sum(map(len, reference))
    equal = sum(
        block.size
        for line, other in zip(lines, reference, strict=True)
        for block in SequenceMatcher(None, line, other, autojunk=False).get_matching_blocks()
    )
    return 2 * equal / characters if characters else 1.0
