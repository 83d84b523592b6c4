"""Emoticons and emoji as what the writer says of the own feelings: cut out and predicted."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

SIGNS = 96
"""How many of the commonest signs are predicted."""

_SIGN = re.compile(
    r"\[[^\[\]\s]{1,8}\]|[\u2600-\u27bf\U0001f300-\U0001f5ff\U0001f600-\U0001f64f\U0001f900-\U0001f9ff]"
)
_NO_FEELING = re.compile(r"\[(图片|视频|链接|转载|组图|.*\d.*)\]")


def signs(text: str) -> list[str]:
    """Return the emoticons and emoji of a text, repeats included."""
    return [sign for sign in _SIGN.findall(text) if not _NO_FEELING.match(sign)]


def without(text: str) -> str:
    """Return the text less its signs."""
    return _SIGN.sub("", text)


def common(texts: Sequence[str]) -> list[str]:
    """Return the signs that the most texts hold, commonest first, ties by their spelling."""
    counts = Counter(sign for text in texts for sign in set(signs(text)))
    return sorted(counts, key=lambda sign: (-counts[sign], sign))[:SIGNS]


def shares(text: str, known: dict[str, int]) -> npt.NDArray[np.float32]:
    """Return ``[SIGNS]``: the part that each known sign has of a text's signs, or zeros."""
    result = np.zeros(SIGNS, dtype=np.float32)
    for sign in set(signs(text)):
        if sign in known:
            result[known[sign]] = 1
    total = result.sum()
    return result / total if total else result
