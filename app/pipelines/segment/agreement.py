"""How far two masks mean the same, without a picture library: in the API process, too."""

from __future__ import annotations

import numpy as np

from app.contracts.ports import ServedModelInfo
from app.contracts.tensors import Tensors
from app.pipelines.segment.masks import normalise
from app.pipelines.segment.parameters import mask_output, read_parameters

FOREGROUND = 0.5


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
