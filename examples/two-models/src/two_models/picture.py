"""Runs in a codec process: a decoded picture in the sizes that the pipeline needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import cv2
import numpy as np

from paddlepool.codec import Pixels, Tensors


def two_sizes(pixels: Pixels, values: Mapping[str, Any]) -> Tensors:
    """Return `whole`, the input of the first model, and `detail`, which boxes are cut out of.

    Both are float32 of shape (1, 3, side, side), each value from 0 to 1. `values` has their sides.
    """
    return {name: _square(pixels, values[name]) for name in ("whole", "detail")}


def _square(pixels: Pixels, side: int) -> Any:
    square = cv2.resize(pixels, (side, side), interpolation=cv2.INTER_AREA)
    planes = square.transpose(2, 0, 1)[np.newaxis]
    return np.ascontiguousarray(planes, np.float32) / np.float32(255)
