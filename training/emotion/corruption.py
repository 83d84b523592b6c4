"""Hides some words of packed texts and replaces others with words that could stand there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from training.emotion.batching import Ids
from training.emotion.packing import Packed
from training.emotion.vocabulary import CLS, MASK, PAD, SEP

_HIDDEN = 0.15
_REPLACED = 0.12
_LONGER = 0.35
"""Chance that a hidden stretch goes on by one more piece: pieces are parts of words."""


@dataclass(frozen=True, slots=True)
class Corrupted:
    """A corrupted batch: ``ids`` ``[rows, width]`` as the network sees them, and the targets.

    ``hidden`` numbers flat positions and ``wanted`` holds their tokens (-100: nothing), both
    ``[budget]``; ``replaced`` ``[rows, width]`` is 1 where a token is not the writer's, 0
    where it is, and -1 without a target.
    """

    ids: Ids
    hidden: Ids
    wanted: Ids
    replaced: npt.NDArray[np.float32]


class Neighbours:
    """Proposes a word that follows, somewhere in the corpus, the word on the left.

    Half of the proposals come from the right neighbour instead. It is the generator of
    ELECTRA at the price of a look-up: a draw from the corpus's own pairs of words.
    """

    def __init__(self, texts: Sequence[Sequence[int]]) -> None:
        self._stream = np.concatenate([np.asarray(text, dtype=np.int32) for text in texts])
        self._order = np.argsort(self._stream, kind="stable").astype(np.int32)
        size = int(self._stream.max()) + 2
        self._starts = np.searchsorted(self._stream[self._order], np.arange(size))

    def proposals(self, left: Ids, right: Ids, rng: np.random.Generator) -> Ids:
        """Return one token for each pair of neighbours ``[n]``; never a special one."""
        forward = rng.random(len(left)) < 0.5
        context = np.where(forward, left, right)
        context = np.minimum(context, len(self._starts) - 2)
        known = self._starts[context + 1] - self._starts[context]
        chosen = self._starts[context] + (rng.random(len(context)) * known).astype(np.int64)
        chosen = self._order[np.minimum(chosen, len(self._order) - 1)] + np.where(forward, 1, -1)
        tokens = self._stream[np.clip(chosen, 0, len(self._stream) - 1)].astype(np.int64)
        anything = self._stream[rng.integers(0, len(self._stream), len(tokens))]
        tokens = np.where((known == 0) | (tokens <= MASK), anything, tokens)
        return np.where(tokens <= MASK, MASK + 1, tokens)


def corrupted(batch: Packed, neighbours: Neighbours, rng: np.random.Generator) -> Corrupted:
    """Hide stretches of words with [MASK] and replace single ones by plausible others."""
    original = batch.ids.reshape(-1)
    flat = original.copy()
    real = (flat != PAD) & (flat != CLS) & (flat != SEP)
    budget = int(_HIDDEN * flat.size)
    starts = real & (rng.random(flat.size) < _HIDDEN / (1 + _LONGER + _LONGER**2))
    second = np.roll(starts & (rng.random(flat.size) < _LONGER), 1)
    third = np.roll(second & (rng.random(flat.size) < _LONGER), 1)
    # A stretch ends at a special token, so that it never runs into the next text.
    second &= real
    third &= real & np.roll(second, 1)
    hidden = np.flatnonzero(starts | second | third)
    hidden = rng.permutation(hidden)[:budget]
    wanted = original[hidden]
    flat[hidden] = MASK
    shown = real.copy()
    shown[hidden] = False
    changed = np.flatnonzero(shown & (rng.random(flat.size) < _REPLACED))
    left = original[np.maximum(changed - 1, 0)]
    right = original[np.minimum(changed + 1, flat.size - 1)]
    flat[changed] = neighbours.proposals(left, right, rng)
    replaced = np.where(shown, (flat != original).astype(np.float32), np.float32(-1))
    missing = (0, budget - len(hidden))
    return Corrupted(
        flat.reshape(batch.ids.shape),
        np.pad(hidden, missing),
        np.pad(wanted, missing, constant_values=-100),
        replaced.reshape(batch.ids.shape).astype(np.float32),
    )
