"""Joins a teacher's opinion of a text with the label another corpus gives it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from training.emotion.corpora import Post
from training.emotion.quality import Floats

_ROUNDS = 5
_TRUST = 0.8
"""Power of the foreign label's evidence; below 1, for it depends on the text as well."""


def joined(chances: Floats, posts: Sequence[Post]) -> Floats:
    """Return ``[n, 6]`` chances given the text and the foreign label together.

    How often each foreign label goes with each emotion is estimated from the chances and
    refined with them, task by task.
    """
    tasks = np.array([post.task for post in posts])
    labels = np.array([post.label for post in posts])
    result = chances.copy()
    for _ in range(_ROUNDS):
        updated = chances.copy()
        for task in np.unique(tasks):
            members = tasks == task
            for label in np.unique(labels[members]):
                chosen = members & (labels == label)
                share = result[chosen].sum(axis=0) / result[members].sum(axis=0)
                updated[chosen] *= share**_TRUST
        result = updated / updated.sum(axis=1, keepdims=True)
    return result
