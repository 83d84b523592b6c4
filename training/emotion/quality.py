"""Figures of merit and calibration, as plain functions of scores and labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize_scalar

from training.emotion.corpora import LABELS

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Quality:
    """What a set of predictions is worth; every figure lies within 0 … 1."""

    texts: int
    accuracy: float
    macro_f1: float
    ece: float
    f1: dict[str, float]


def softmax(logits: Floats) -> Floats:
    """Return probabilities ``[n, classes]``."""
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    result: Floats = powers / powers.sum(axis=1, keepdims=True)
    return result


def measure(logits: Floats, labels: Ints) -> Quality:
    """Judge ``[n, 6]`` logits against ``[n]`` class numbers."""
    probabilities = softmax(logits)
    guesses = probabilities.argmax(axis=1)
    f1 = {}
    for number, name in enumerate(LABELS):
        guessed, true = guesses == number, labels == number
        f1[name] = float(2 * (guessed & true).sum() / max(1, guessed.sum() + true.sum()))
    return Quality(
        texts=len(labels),
        accuracy=float((guesses == labels).mean()),
        macro_f1=float(np.mean(list(f1.values()))),
        ece=calibration_error(probabilities, labels),
        f1=f1,
    )


def calibration_error(probabilities: Floats, labels: Ints, *, bins: int = 15) -> float:
    """Return the expected gap between the top score and how often the top class is right."""
    top, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
    slot = np.minimum((top * bins).astype(int), bins - 1)
    gaps = (abs(top[slot == b].sum() - right[slot == b].sum()) for b in range(bins))
    return float(sum(gaps) / len(labels))


def temperature(logits: Floats, labels: Ints) -> float:
    """Return the divisor of the logits under which the labels are likeliest."""

    def surprise(log_divisor: float) -> float:
        chances = softmax(logits / np.exp(log_divisor))
        return float(-np.log(chances[np.arange(len(labels)), labels] + 1e-12).mean())

    return float(np.exp(minimize_scalar(surprise, bounds=(-2, 2), method="bounded").x))


def rare_lift(logits: Floats, labels: Ints, shares: Floats) -> float:
    """Return how far rare classes are worth raising: the power of ``1 / shares``, 0 … 0.4."""

    def worth(lift: float) -> float:
        found = measure(logits - lift * np.log(shares), labels)
        return found.accuracy + found.macro_f1

    return max((0.0, 0.1, 0.2, 0.3, 0.4), key=worth)
