"""Fills rows of one fixed length with whole texts, so that next to nothing is padding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from training.emotion.batching import WIDTHS, Ids
from training.emotion.vocabulary import PAD, SEP

WIDTH = WIDTHS[-1]
_TEXTS_PER_ROW = 8
_MISSES = 12
"""Texts that fit nowhere before a batch is called full; they open the next one."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A batch with several texts a row; every array has one shape for all batches.

    ``ids``, ``owner`` and ``place`` are ``[rows, WIDTH]``: the tokens, the text each belongs to
    (-1: padding) and its position within that text. ``first`` and ``picked`` are ``[texts]``:
    where in the flattened ids each text begins, and its number in the corpus (-1: none).
    """

    ids: Ids
    owner: Ids
    place: Ids
    first: Ids
    picked: Ids


def packed(order: Iterable[tuple[int, Sequence[int]]], *, rows: int) -> Iterator[Packed]:
    """Yield batches of ``rows`` rows from (number, tokens) pairs, longer texts cut to WIDTH.

    What is left when the pairs end fills no batch and is dropped.
    """
    waiting: list[tuple[int, Sequence[int]]] = []
    source = iter(order)
    while True:
        pending, waiting = waiting, []
        free = np.full(rows, WIDTH)
        ids = np.full((rows, WIDTH), PAD, dtype=np.int64)
        owner = np.full((rows, WIDTH), -1, dtype=np.int64)
        place = np.zeros((rows, WIDTH), dtype=np.int64)
        first = np.zeros(rows * _TEXTS_PER_ROW, dtype=np.int64)
        picked = np.full(rows * _TEXTS_PER_ROW, -1, dtype=np.int64)
        count = 0
        while len(waiting) < _MISSES and count < len(picked):
            pair = pending.pop() if pending else next(source, None)
            if pair is None:
                return
            number, text = pair
            tokens = text if len(text) <= WIDTH else [*text[: WIDTH - 1], SEP]
            fits = np.flatnonzero(free >= len(tokens))
            if not len(fits):
                waiting.append(pair)
                continue
            # The fullest row that still holds it: long texts find room longer.
            row = fits[free[fits].argmin()]
            start = WIDTH - free[row]
            end = start + len(tokens)
            ids[row, start:end], owner[row, start:end] = tokens, count
            place[row, start:end] = np.arange(len(tokens))
            first[count], picked[count] = row * WIDTH + start, number
            free[row] -= len(tokens)
            count += 1
        waiting += pending
        yield Packed(ids, owner, place, first, picked)
