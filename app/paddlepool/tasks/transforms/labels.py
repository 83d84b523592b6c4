"""Turns classes and their scores into labels, texts and maps of labels. Uses NumPy alone."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paddlepool.contracts.errors import ModelOutputInvalid

BLANK = 0
"""The class of a step without a character; it separates two equal characters."""


class Label(NamedTuple):
    """A class: its number, its label, and the model's score for it."""

    class_id: int
    label: str
    score: float


class Text(NamedTuple):
    """A line of text and the mean score of its characters, 0 without characters."""

    text: str
    score: float


def top_labels(
    scores: NDArray[Any], *, topk: int, label_list: Sequence[str] | None = None
) -> list[list[Label]]:
    """Return the `topk` best classes of each picture, best first: PaddleX's `Topk`.

    `scores` is (pictures, classes). If there are fewer than `topk` classes, all are returned. A
    class without a label gets its number as label. The score is the model's own number, which
    PaddleX rounds to five decimals.
    """
    labels = dict(enumerate(label_list or ()))
    order = scores.argsort(axis=1)[:, -topk:][:, ::-1]
    return [
        [Label(int(i), labels.get(int(i), str(i)), float(row[i])) for i in best]
        for row, best in zip(scores, order, strict=True)
    ]


def characters_of(character_dict: Sequence[str]) -> list[str]:
    """Return the characters of all classes in order: "" (blank), `character_dict`, " " (space)."""
    return ["", *character_dict, " "]


def text_from_classes(scores: NDArray[Any], characters: Sequence[str]) -> list[Text]:
    """Return the text of each line: PaddleX's `CTCLabelDecode`.

    `scores` is (lines, steps, classes), `characters` the result of characters_of().
    """
    return text_from_best(scores.argmax(axis=2), scores.max(axis=2), characters)


def text_from_best(
    best: NDArray[Any], highest: NDArray[Any], characters: Sequence[str]
) -> list[Text]:
    """Return the text of each line from its best classes and their scores, both (lines, steps).

    `characters` is the result of characters_of().
    """
    texts = []
    for classes, scores in zip(best, highest, strict=True):
        kept = is_character(classes)
        text = "".join(characters[i] for i in classes[kept])
        texts.append(Text(text, float(scores[kept].mean()) if kept.any() else 0.0))
    return texts


def is_character(classes: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which steps of a line have a character, from the best class of each step (steps).

    A step has none if its class is the blank, or the class of the step before it.
    """
    character = classes != BLANK
    character[1:] &= classes[1:] != classes[:-1]
    return character


def pixel_labels(output: NDArray[Any]) -> NDArray[Any]:
    """Return the label of each pixel, (h, w) of whole numbers, from a model's output.

    The output is that for one picture: labels (h, w) or (1, h, w) as whole numbers, or scores
    (classes, h, w). Raises ModelOutputInvalid for another output.
    """
    labels = output
    if labels.ndim == 3:
        whole = np.issubdtype(labels.dtype, np.integer) and len(labels) == 1
        labels = labels[0] if whole else labels.argmax(axis=0)
    if labels.ndim != 2 or not np.issubdtype(labels.dtype, np.integer):
        raise ModelOutputInvalid(
            f"the output {output.dtype}{(1, *output.shape)} has neither labels (1, height, width) "
            "nor scores (1, classes, height, width)"
        )
    return labels
