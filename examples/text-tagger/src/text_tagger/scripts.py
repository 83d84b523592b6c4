"""Runs in threads: a text to the network's input, and its output to tags."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from paddlepool.plugin import Array, errors

# The main blocks of https://www.unicode.org/charts/ for each script.
SCRIPTS: tuple[tuple[str, tuple[tuple[int, int], ...]], ...] = (
    ("han", ((0x4E00, 0x9FFF), (0x3400, 0x4DBF))),
    ("kana", ((0x3040, 0x30FF),)),
    ("hangul", ((0xAC00, 0xD7A3),)),
    ("cyrillic", ((0x0400, 0x04FF),)),
    ("latin", ((0x0041, 0x005A), (0x0061, 0x007A), (0x00C0, 0x024F))),
)
THRESHOLD = 0.5


class Tag(NamedTuple):
    name: str
    score: float


def shares(text: str) -> Array:
    """(1, scripts) float32: each script's share of the letters. Raises TextEmpty without any."""
    counts = np.zeros((1, len(SCRIPTS)), np.float32)
    for letter in map(ord, text):
        for position, (_, blocks) in enumerate(SCRIPTS):
            counts[0, position] += any(low <= letter <= high for low, high in blocks)
    if not counts.any():
        raise errors.TextEmpty("the text has no letter of a known script", received=len(text))
    result: Array = counts / counts.sum()
    return result


def tags_of(logits: Array, names: Sequence[str]) -> list[Tag]:
    """The tags whose score reaches the threshold, best first. Raises ModelOutputInvalid."""
    if logits.shape != (1, len(names)):
        raise errors.ModelOutputInvalid(f"the model returned logits of shape {list(logits.shape)}")
    scores = 1 / (1 + np.exp(-logits[0]))
    tags = [Tag(name, float(score)) for name, score in zip(names, scores, strict=True)]
    return sorted((tag for tag in tags if tag.score >= THRESHOLD), key=lambda tag: -tag.score)
