"""Makes what the encoder is pre-trained on: hidden words, and the emotions of every post."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from training.emotion.batching import Ids
from training.emotion.corpora import LABELS, Post
from training.emotion.quality import Floats
from training.emotion.vocabulary import CLS, MASK, PAD, SEP

_MASKED = 0.2


def masking(ids: Ids, *, vocabulary: int, rng: np.random.Generator) -> tuple[Ids, Ids, Ids]:
    """Hide a fifth of the tokens: eight of ten as [MASK], one as another, one as itself.

    Returns the changed ids, the flat positions, and the tokens wanted there; the number
    of positions depends on the shape alone, with -100 wanted where fewer are needed.
    """
    flat = ids.reshape(-1).copy()
    budget = int(_MASKED * flat.size)
    real = np.flatnonzero((flat != PAD) & (flat != CLS) & (flat != SEP))
    chosen = rng.permutation(real)[: min(budget, int(_MASKED * real.size) + 1)]
    wanted = flat[chosen].copy()
    dice = rng.random(len(chosen))
    flat[chosen[dice < 0.8]] = MASK
    swapped = chosen[dice >= 0.9]
    flat[swapped] = rng.integers(MASK + 1, vocabulary, len(swapped))
    missing = (0, budget - len(chosen))
    return (
        flat.reshape(ids.shape),
        np.pad(chosen, missing),
        np.pad(wanted, missing, constant_values=-100),
    )


def feelings(teacher: Path, posts: Sequence[Post], *, hard: float) -> Floats:
    """Return ``[len(posts) + 1, 6]`` chances: labels and the linear teacher; 0 for reviews."""
    opinions = np.load(teacher)
    chances = np.zeros((len(posts) + 1, len(LABELS)))
    own = np.array([post.task == "smp" for post in posts])
    chances[:-1][own] = mixed(
        [post for post in posts if post.task == "smp"], opinions["train"], hard=hard
    )
    foreign = np.array([post.task not in ("smp", "polarity") for post in posts])
    chances[:-1][foreign] = opinions["auxiliary"]
    return chances


def mixed(posts: Sequence[Post], teacher: Floats, *, hard: float) -> Floats:
    """Return ``[n, 6]`` targets: a share ``hard`` of the posts' labels, the rest a teacher's."""
    labels = np.eye(len(LABELS))[[LABELS.index(post.label) for post in posts]]
    result: Floats = hard * labels + (1 - hard) * teacher
    return result
