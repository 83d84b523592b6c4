"""Logits to probabilities by label, best first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.contracts.tensors import Array, Tensors


class Score(NamedTuple):
    """One label with its probability; `label_zh` is None where the model names none.

    A named tuple, because a request of 32 texts has 192 of them and a frozen dataclass takes longer
    to make.
    """

    label: str
    label_zh: str | None
    score: float


def softmax(logits: Array) -> NDArray[np.float64]:
    """Rows of [texts, labels], all finite, to probabilities, in float64."""
    exact = logits.astype(np.float64)
    powers = np.exp(exact - exact.max(axis=1, keepdims=True))
    probabilities: NDArray[np.float64] = powers / powers.sum(axis=1, keepdims=True)
    return probabilities


def rank(
    probabilities: NDArray[np.float64],
    *,
    labels: Sequence[str],
    labels_zh: Sequence[str] | None,
) -> tuple[tuple[Score, ...], ...]:
    """Every row's labels by falling probability; equal ones keep the order of the labels."""
    translated = labels_zh if labels_zh is not None else [None] * len(labels)
    order = np.argsort(-probabilities, axis=1, kind="stable").tolist()
    return tuple(
        tuple(Score(labels[i], translated[i], row[i]) for i in best)
        for row, best in zip(probabilities.tolist(), order, strict=True)
    )


def label_agreement(found: Tensors, expected: Tensors) -> float:
    """The share of texts that get the same label; logits are (texts, labels)."""
    [ours], [theirs] = found.values(), expected.values()
    return float(np.mean(ours.argmax(axis=-1) == theirs.argmax(axis=-1)))
