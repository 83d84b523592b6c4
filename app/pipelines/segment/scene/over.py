"""One picture over another, and everything that lies under a foreground put together."""

from __future__ import annotations

from collections.abc import Callable

import cv2
import numpy as np

from app.codecs.bands import bands
from app.codecs.picture import Pixels


def over(front: Pixels, alpha: Pixels, back: Pixels) -> Pixels:
    """`front` (H, W, 3 or 4; its own alpha is `alpha`) over `back`, in the form of `back`:
    RGB, or RGBA with colours not multiplied by alpha."""
    colours = np.ascontiguousarray(front[..., :3])
    if back.shape[2] == 3:
        weight = alpha.astype(np.float32)
        under = np.ascontiguousarray(back)
        blended: Pixels = cv2.blendLinear(colours, under, weight, np.float32(255.0) - weight)
        return blended
    cover = alpha[..., None].astype(np.float32) / 255.0
    rest = (1.0 - cover) * (back[..., 3:].astype(np.float32) / 255.0)
    total = cover + rest
    result = np.empty(back.shape, np.uint8)
    result[..., :3] = np.rint((colours * cover + back[..., :3] * rest) / np.maximum(total, 1e-6))
    result[..., 3] = np.rint(total[..., 0] * 255.0)
    return result


def stacked(
    pixels: Pixels,
    alpha: Pixels,
    *,
    ground: Callable[[slice], Pixels],
    shade: Callable[[slice], Pixels] | None,
) -> Pixels:
    """The foreground over its shadow over the ground; both are asked for by bands of rows."""
    height, width = alpha.shape
    channels = ground(slice(0, 1)).shape[2]
    result = np.empty((height, width, channels), np.uint8)
    for rows in bands(height, width):
        back = ground(rows)
        if shade is not None:
            back = over(np.zeros((*back.shape[:2], 3), np.uint8), shade(rows), back)
        result[rows] = over(pixels[rows], alpha[rows], back)
    return result
