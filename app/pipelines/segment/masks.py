"""Masks as arrays, without a picture library: also read in the API process."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from app.contracts.ports import ServedModelInfo
from app.contracts.tensors import Tensors
from app.pipelines.segment.parameters import mask_output, read_parameters

Floats = NDArray[np.float32]

FOREGROUND = 0.5


def normalise(mask: Floats) -> Floats:
    """Stretch a mask to 0…1, as normPRED() of
    https://github.com/xuebinqin/U-2-Net/blob/master/u2net_test.py does. A flat mask stays."""
    low, high = float(mask.min()), float(mask.max())
    if high - low < 1e-6:
        return np.clip(mask, 0.0, 1.0)
    return (mask - np.float32(low)) / np.float32(high - low)


class MaskAgreement:
    """Intersection over union of two masks: 1 where both call the same pixels foreground."""

    def __init__(self, info: ServedModelInfo) -> None:
        self._output = mask_output(info, read_parameters(info)).name

    def __call__(self, found: Tensors, expected: Tensors) -> float:
        """1 also where both masks are empty."""
        ours, theirs = (
            normalise(np.asarray(each[self._output], np.float32)) >= FOREGROUND
            for each in (found, expected)
        )
        union = int((ours | theirs).sum())
        return float((ours & theirs).sum() / union) if union else 1.0
