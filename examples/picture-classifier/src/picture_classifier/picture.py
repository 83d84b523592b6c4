"""Runs in a codec process: a decoded picture to the network's input."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import cv2
import numpy as np

from paddlepool.codec import Pixels, Tensors


def network_input(pixels: Pixels, values: Mapping[str, Any]) -> Tensors:
    """Return the picture as float32 of shape (1, 3, size, size), each value from 0 to 1."""
    side = values["size"]
    square = cv2.resize(pixels, (side, side), interpolation=cv2.INTER_AREA)
    planes = square.transpose(2, 0, 1)[np.newaxis]
    return {values["input"]: np.ascontiguousarray(planes, np.float32) / np.float32(255)}
