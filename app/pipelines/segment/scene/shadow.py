"""A soft shadow behind the subject, as if it stood a little before the background."""

from __future__ import annotations

from collections.abc import Callable

import cv2
import numpy as np

from app.codecs.picture import Pixels
from app.pipelines.segment.scene.framing import Area

BLUR = 0.025
FALLS = (0.015, 0.03)
"""Standard deviation, and how far it falls right and down: parts of the subject's longer side."""
SMALL_SIGMA = 4.0
REACH = 3.0
"""The blur's reach in standard deviations; beyond it less than half a level is left."""


def drop_shadow(
    alpha: Pixels, place: Area, *, opacity: float, width: int
) -> Callable[[slice], Pixels]:
    """The shadow's alpha by bands of rows, of what stands at `place` on a canvas that is `width`
    wide. It ends where the canvas does."""
    longer = max(place.height, place.width)
    sigma = BLUR * longer
    step = max(1.0, sigma / SMALL_SIGMA)
    size = (max(1, round(place.width / step)), max(1, round(place.height / step)))
    small = cv2.resize(alpha[place.slices], size, interpolation=cv2.INTER_AREA)
    border = round(REACH * sigma / step) + 2
    small = cv2.copyMakeBorder(
        small.astype(np.float32), border, border, border, border, cv2.BORDER_CONSTANT, value=0
    )
    soft = cv2.GaussianBlur(small, None, max(sigma / step, 0.1)) * np.float32(opacity)
    patch = (soft + 0.5).astype(np.uint8)
    across, down = size[0] / place.width, size[1] / place.height
    left, top = place.left + FALLS[0] * longer, place.top + FALLS[1] * longer

    def band(rows: slice) -> Pixels:
        # Middles of pixels; the patch begins `border` of its own pixels before the subject.
        shift_x = (0.5 - left) * across - 0.5 + border
        shift_y = (rows.start + 0.5 - top) * down - 0.5 + border
        result: Pixels = cv2.warpAffine(
            patch,
            np.array([[across, 0.0, shift_x], [0.0, down, shift_y]]),
            (width, rows.stop - rows.start),
            flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
            borderMode=cv2.BORDER_CONSTANT,
            borderValue=0,
        )
        return result

    return band
