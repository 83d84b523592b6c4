"""Whether two predictors give texts the same labels."""

from __future__ import annotations

import numpy as np

from app.contracts.tensors import Tensors


def label_agreement(found: Tensors, expected: Tensors) -> float:
    """The share of texts that get the same label; logits are (texts, labels)."""
    [ours], [theirs] = found.values(), expected.values()
    return float(np.mean(ours.argmax(axis=-1) == theirs.argmax(axis=-1)))
