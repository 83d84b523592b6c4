"""Makes masks from a model's output; imports no picture library, because any process uses it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paddlepool.tasks.codecs.picture import Floats

FAINT = 0.1
"""A mask whose largest value is below this has no foreground. The official networks reach at least
0.97 for a subject, and 0.06 for a plain picture, whose noise would become a subject if stretched.
"""


def normalise(mask: Floats) -> Floats:
    """Stretch a mask so that its values go from 0 to 1, as normPRED() of U²-Net does.

    See https://github.com/xuebinqin/U-2-Net/blob/master/u2net_test.py. A mask whose values are all
    below FAINT becomes 0 everywhere. Any other mask of a single value is only clipped to 0…1.
    """
    low, high = float(mask.min()), float(mask.max())
    if high < FAINT:
        return np.zeros_like(mask)
    if high - low < 1e-6:
        return np.clip(mask, 0.0, 1.0)
    return (mask - np.float32(low)) / np.float32(high - low)


def foreground_of(labels: NDArray[Any], *, classes: Sequence[int], invert: bool) -> Floats:
    """Return a mask (h, w): 1 where the label is one of `classes`, else 0; `invert` swaps both."""
    return np.isin(labels, classes, invert=invert).astype(np.float32)
