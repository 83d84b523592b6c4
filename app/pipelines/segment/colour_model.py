"""A plane as a linear function of a picture's colours in small windows: alpha = a . colour + b.

What the guided filter and the matting Laplacian have in common.
"""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np

from app.pipelines.segment.masks import Floats

Inverse = tuple[tuple[Floats, Floats, Floats], ...]


class ColourModel:
    """Of a picture (h, w, 3) from 0 to 1, in windows of 2 * radius + 1 pixels a side.

    `epsilon` keeps the slopes small where a window has hardly more than one colour. Where it is
    very small, `digits` must be double precision: of colours that are alike, as in grey pictures,
    what the determinant adds up nearly cancels.
    """

    def __init__(
        self, picture: Floats, *, radius: int, epsilon: float, digits: type = np.float32
    ) -> None:
        self._window = (2 * radius + 1, 2 * radius + 1)
        self.colours = red, green, blue = cv2.split(picture)
        self._means = m_red, m_green, m_blue = [self._mean(plane) for plane in self.colours]
        # Covariance of the colours: symmetric 3 x 3 at each pixel, epsilon on the diagonal.
        rr = np.maximum(self._mean(red * red) - m_red * m_red, 0) + np.float32(epsilon)
        gg = np.maximum(self._mean(green * green) - m_green * m_green, 0) + np.float32(epsilon)
        bb = np.maximum(self._mean(blue * blue) - m_blue * m_blue, 0) + np.float32(epsilon)
        rg = self._mean(red * green) - m_red * m_green
        rb = self._mean(red * blue) - m_red * m_blue
        gb = self._mean(green * blue) - m_green * m_blue
        self._inverse = _inverse(*(plane.astype(digits) for plane in (rr, gg, bb, rg, rb, gb)))

    def fit(self, plane: Floats) -> tuple[list[Floats], Floats]:
        """The slopes for red, green and blue, and the offset, (h, w) each: the means over all
        windows that a pixel lies in of what fits `plane` (h, w) best in each window."""
        middle = self._mean(plane)
        red, green, blue = (
            self._mean(colour * plane) - mean * middle
            for colour, mean in zip(self.colours, self._means, strict=True)
        )
        slopes = [row[0] * red + row[1] * green + row[2] * blue for row in self._inverse]
        for slope, mean in zip(slopes, self._means, strict=True):
            middle -= slope * mean
        return [self._mean(slope) for slope in slopes], self._mean(middle)

    def _mean(self, plane: Floats) -> Floats:
        result: Floats = cv2.blur(plane, self._window, borderType=cv2.BORDER_REFLECT)
        return result


def _inverse(rr: Any, gg: Any, bb: Any, rg: Any, rb: Any, gb: Any) -> Inverse:
    """By cofactors."""
    i_rr, i_rg, i_rb = gg * bb - gb * gb, gb * rb - rg * bb, rg * gb - gg * rb
    i_gg, i_gb, i_bb = rr * bb - rb * rb, rb * rg - rr * gb, rr * gg - rg * rg
    # Positive definite thanks to epsilon.
    share = 1 / (i_rr * rr + i_rg * rg + i_rb * rb)

    def scaled(cofactor: Any) -> Floats:
        result: Floats = (cofactor * share).astype(np.float32, copy=False)
        return result

    rr_, rg_, rb_ = scaled(i_rr), scaled(i_rg), scaled(i_rb)
    gg_, gb_, bb_ = scaled(i_gg), scaled(i_gb), scaled(i_bb)
    return (rr_, rg_, rb_), (rg_, gg_, gb_), (rb_, gb_, bb_)
