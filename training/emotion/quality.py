"""Figures of merit and calibration, as plain functions of scores and labels."""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize_scalar

from paddlepool.tasks.sentiment.evaluation import Floats, Ints, Quality
from paddlepool.tasks.sentiment.evaluation import measure as judge
from training.emotion.corpora import LABELS


def softmax(logits: Floats) -> Floats:
    """Return probabilities ``[n, classes]``."""
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    result: Floats = powers / powers.sum(axis=1, keepdims=True)
    return result


def measure(logits: Floats, labels: Ints) -> Quality:
    """Judge ``[n, 6]`` logits against ``[n]`` class numbers."""
    return judge(softmax(logits), labels, labels=LABELS)


def temperature(logits: Floats, labels: Ints) -> float:
    """Return the divisor of the logits under which the labels are likeliest."""

    def surprise(log_divisor: float) -> float:
        chances = softmax(logits / np.exp(log_divisor))
        return float(-np.log(chances[np.arange(len(labels)), labels] + 1e-12).mean())

    return float(np.exp(minimize_scalar(surprise, bounds=(-2, 2), method="bounded").x))


def rare_lift(logits: Floats, labels: Ints, shares: Floats) -> float:
    """Return how far rare classes are worth raising: the power of ``1 / shares``, 0 … 0.4."""

    def worth(lift: float) -> float:
        quality = measure(logits - lift * np.log(shares), labels)
        return quality.accuracy + quality.macro_f1

    return max((0.0, 0.1, 0.2, 0.3, 0.4), key=worth)
