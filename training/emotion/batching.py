"""Groups tokenised texts of like length into batches of a few fixed shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from training.emotion.vocabulary import PAD, SEP

WIDTHS = (8, 16, 24, 32, 48, 64, 96, 128)
"""Sequence lengths used; the last is the longest that the network knows."""

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows ``[n, width]`` of token ids, and which text each row holds (-1: none)."""

    ids: Ids
    rows: Ids


def shuffled(
    lengths: Ids, *, tokens: int, rng: np.random.Generator, exact: bool = False
) -> list[Ids]:
    """Split text numbers into batches of about ``tokens`` tokens, like lengths together.

    With ``exact`` a short last batch of a width is filled with -1, so that only
    ``len(WIDTHS)`` shapes ever occur and a compiled step is not compiled again.
    """
    width_of = np.searchsorted(WIDTHS, np.minimum(lengths, WIDTHS[-1]))
    batches: list[Ids] = []
    for slot, width in enumerate(WIDTHS):
        members = rng.permutation(np.flatnonzero(width_of == slot))
        size = max(1, tokens // width)
        for start in range(0, len(members), size):
            rows = members[start : start + size]
            if exact:
                rows = np.pad(rows, (0, size - len(rows)), constant_values=-1)
            batches.append(rows)
    rng.shuffle(batches)
    return batches


def pad(texts: Sequence[Sequence[int]], rows: Ids) -> Batch:
    """Return the chosen texts cut and padded to the narrowest width that holds them."""
    longest = max((len(texts[row]) for row in rows if row >= 0), default=1)
    width = next((width for width in WIDTHS if width >= longest), WIDTHS[-1])
    ids = np.full((len(rows), width), PAD, dtype=np.int64)
    for place, row in enumerate(rows):
        if row >= 0:
            text = texts[row]
            kept = text if len(text) <= width else [*text[: width - 1], SEP]
            ids[place, : len(kept)] = kept
    return Batch(ids, rows)
