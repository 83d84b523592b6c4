"""Groups tokenised texts of like length into batches of a few fixed shapes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from training.emotion.vocabulary import PAD, SEP

WIDTHS = (8, 16, 24, 32, 48, 64, 96, 128)
"""Sequence lengths used; the last is the longest that the network knows."""

Ids = npt.NDArray[np.int64]


def shuffled(lengths: Ids, *, tokens: int, rng: np.random.Generator) -> list[Ids]:
    """Split text numbers into batches of about ``tokens`` tokens, like lengths together."""
    width_of = np.searchsorted(WIDTHS, np.minimum(lengths, WIDTHS[-1]))
    batches: list[Ids] = []
    for slot, width in enumerate(WIDTHS):
        members = rng.permutation(np.flatnonzero(width_of == slot))
        size = max(1, tokens // width)
        for start in range(0, len(members), size):
            batches.append(members[start : start + size])
    rng.shuffle(batches)
    return batches


def pad(texts: Sequence[Sequence[int]], rows: Ids) -> Ids:
    """Return the chosen texts ``[n, width]``, cut and padded to the narrowest width of all."""
    longest = max(len(texts[row]) for row in rows)
    width = next((width for width in WIDTHS if width >= longest), WIDTHS[-1])
    ids = np.full((len(rows), width), PAD, dtype=np.int64)
    for place, row in enumerate(rows):
        text = texts[row]
        tokens = text if len(text) <= width else [*text[: width - 1], SEP]
        ids[place, : len(tokens)] = tokens
    return ids
