"""Runs in threads: the box around the subject, and the picture in it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from paddlepool.plugin import Array


class Box(NamedTuple):
    """Edges as shares of the picture's width and height, from 0 to 1."""

    left: float
    top: float
    right: float
    bottom: float


def subject_box(logits: Array) -> Box | None:
    """Return the box around all places with a positive logit; None if there is none.

    `logits` has the shape (1, 1, rows, columns).
    """
    rows, columns = np.nonzero(logits[0, 0] > 0)
    if not rows.size:
        return None
    height, width = logits.shape[2:]
    return Box(
        left=float(columns.min() / width),
        top=float(rows.min() / height),
        right=float((columns.max() + 1) / width),
        bottom=float((rows.max() + 1) / height),
    )


def cropped(detail: Array, box: Box, side: int) -> Array:
    """Return the picture in the box, (1, 3, side, side), each pixel the nearest one of `detail`."""
    height, width = detail.shape[2:]
    steps = (np.arange(side) + 0.5) / side
    rows = ((box.top + (box.bottom - box.top) * steps) * height).astype(int)
    columns = ((box.left + (box.right - box.left) * steps) * width).astype(int)
    crop: Array = np.ascontiguousarray(detail[:, :, rows][:, :, :, columns])
    return crop
