"""Makes the emotion targets of every post from its label and a teacher's opinion."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from training.emotion.corpora import LABELS, Post
from training.emotion.quality import Floats


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
