"""Logits to probabilities by label, best first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.contracts.errors import ModelOutputInvalid
from app.contracts.tensors import Array


class Score(NamedTuple):
    """One label with its probability; `label_zh` is None where the model names none.

    A named tuple, because a request of 32 texts has 192 of them and a frozen dataclass takes longer
    to make.
    """

    label: str
    label_zh: str | None
    score: float


def softmax(logits: Array) -> NDArray[np.float64]:
    """Rows of [texts, labels] to probabilities, in float64; raises ModelOutputInvalid.

    A number that is not finite must not reach a reply: JSON has no word for it.
    """
    exact = logits.astype(np.float64)
    if not np.isfinite(exact).all():
        raise ModelOutputInvalid("the model returned a score that is not a finite number")
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
