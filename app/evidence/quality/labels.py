"""Accuracy, F1 and calibration of class probabilities, as plain functions of arrays."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

BINS = 15


@dataclass(frozen=True, slots=True)
class Quality:
    """Figures of a set of predictions; each lies within 0 … 1."""

    texts: int
    accuracy: float
    macro_f1: float
    ece: float
    f1: dict[str, float]


def measure(probabilities: Floats, truth: Ints, *, labels: Sequence[str]) -> Quality:
    """Judge ``[n, classes]`` probabilities against ``[n]`` class numbers, n at least 1.

    A class that is never guessed and never true has F1 0 and still counts in the mean.
    """
    guesses = probabilities.argmax(axis=1)
    f1 = {}
    for number, name in enumerate(labels):
        guessed, true = guesses == number, truth == number
        f1[name] = float(2 * (guessed & true).sum() / max(1, guessed.sum() + true.sum()))
    return Quality(
        texts=len(truth),
        accuracy=float((guesses == truth).mean()),
        macro_f1=float(np.mean(list(f1.values()))),
        ece=calibration_error(probabilities, truth),
        f1=f1,
    )


def calibration_error(probabilities: Floats, truth: Ints) -> float:
    """Return the expected calibration error: the mean gap between top score and accuracy."""
    top, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == truth
    slot = np.minimum((top * BINS).astype(int), BINS - 1)
    gaps = (abs(top[slot == b].sum() - right[slot == b].sum()) for b in range(BINS))
    return float(sum(gaps) / len(truth))


def text_key(text: str) -> str:
    """Return a key that copies of one post share: letters and digits, width and case folded."""
    return re.sub(r"[\W_]+", "", unicodedata.normalize("NFKC", text).lower()) or text.strip()
