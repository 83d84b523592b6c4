"""Make a mask follow the picture's edges: the fast guided filter, with the colour picture as guide.

After He, Sun and Tang, "Guided Image Filtering" (2013), and He and Sun, "Fast Guided Filter"
(2015, https://arxiv.org/abs/1505.00996): the linear model alpha = a . colour + b is fitted in small
windows of a reduced picture and applied to the full one, so that its cost hardly grows with the
picture.
"""

from __future__ import annotations

import cv2
import numpy as np

from app.codecs.picture import Pixels
from app.pipelines.segment.matte import Floats, bands

WORKING_PIXELS = 120_000
RADIUS = 0.01
"""Window radius as a fraction of the longer side: about the width of the network's own blur."""
EPSILON = 1e-3
LEVELS = 0.2
"""The mask is stretched about 0.5 before and after: the network's blur is not translucency.
Chosen with the other values on pictures with known masks, by the error near their edges."""
UNDECIDED = (0.15, 0.85)
BROAD = 0.015
"""The mask is undecided over a region, and not along an edge, where discs of this radius (of its
longer side) fit in between: wider than the network's blur."""


def guided_alpha(pixels: Pixels, mask: Floats) -> Pixels:
    """Alpha (H, W) for a picture (H, W, 3 or 4) and a mask of any size, 0 to 1.

    It follows the picture's edges, but keeps the mask's own value in regions that are undecided:
    the colours there say nothing of what belongs to the foreground.
    """
    height, width = pixels.shape[:2]
    step = max(1, round((height * width / WORKING_PIXELS) ** 0.5))
    step = min(step, height, width)
    # Whole blocks of step x step pixels; what is left over at two edges shares the last block.
    rows, columns = height // step, width // step
    small = cv2.resize(
        pixels[: rows * step, : columns * step, :3],
        (columns, rows),
        interpolation=cv2.INTER_AREA,
    )
    target = cv2.resize(mask, (columns, rows), interpolation=cv2.INTER_LINEAR)
    model = _fit(small, _stretch(target), max(1, round(RADIUS * max(rows, columns))))
    _keep_undecided(model, mask, target)
    padded = cv2.copyMakeBorder(model, 1, 2, 1, 2, cv2.BORDER_REPLICATE)
    # The sum over the channels, stretched and scaled to 0…255 in the same step.
    scale = 255.0 / (1.0 - 2 * LEVELS)
    weights = np.array([[scale, scale, scale, scale, -LEVELS * scale]], np.float32)
    alpha = np.empty((height, width), np.uint8)
    for band in bands(height, width, step=step):
        first, last = band.start // step, -(-band.stop // step)
        full = cv2.resize(
            padded[first : last + 2], None, fx=step, fy=step, interpolation=cv2.INTER_LINEAR
        )[step : step + band.stop - band.start, step : step + width]
        # Red, green, blue and 255: the model has b in 1/255, too.
        colour = cv2.cvtColor(np.ascontiguousarray(pixels[band][..., :3]), cv2.COLOR_RGB2RGBA)
        value = cv2.transform(cv2.multiply(full, colour, dtype=cv2.CV_32F), weights)
        alpha[band] = np.clip(value, 0.0, 255.0, out=value) + np.float32(0.5)
    return alpha


def _stretch(mask: Floats) -> Floats:
    stretched: Floats = (mask - np.float32(LEVELS)) / np.float32(1.0 - 2 * LEVELS)
    return np.clip(stretched, np.float32(0.0), np.float32(1.0))


def _keep_undecided(model: Floats, mask: Floats, target: Floats) -> None:
    """Where the mask is undecided over a region, let the model give the mask's value."""
    radius = max(1, round(BROAD * max(mask.shape)))
    disc = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * radius + 1, 2 * radius + 1))
    region = cv2.morphologyEx(
        cv2.inRange(mask, *UNDECIDED), cv2.MORPH_OPEN, disc, borderType=cv2.BORDER_REPLICATE
    )
    if not region.any():
        return
    soft = cv2.GaussianBlur(region.astype(np.float32) / 255, (0, 0), radius / 2)
    share = cv2.resize(soft, (target.shape[1], target.shape[0]), interpolation=cv2.INTER_LINEAR)
    model *= (np.float32(1) - share)[..., None]
    # What the last stretch turns into the mask's value again.
    model[..., 3] += share * (target * np.float32(1 - 2 * LEVELS) + np.float32(LEVELS)) / 255


def _fit(small: Pixels, target: Floats, radius: int) -> Floats:
    """The smoothed linear model (h, w, 4): a_red, a_green, a_blue and b, all in units of 1/255."""
    window = (2 * radius + 1, 2 * radius + 1)

    def mean(plane: Floats) -> Floats:
        result: Floats = cv2.blur(plane, window, borderType=cv2.BORDER_REFLECT)
        return result

    red, green, blue = cv2.split(small.astype(np.float32) / np.float32(255.0))
    m_red, m_green, m_blue, m_target = mean(red), mean(green), mean(blue), mean(target)
    # Covariance of the colours: symmetric 3 x 3 at each pixel, epsilon on the diagonal.
    rr = mean(red * red) - m_red * m_red + np.float32(EPSILON)
    gg = mean(green * green) - m_green * m_green + np.float32(EPSILON)
    bb = mean(blue * blue) - m_blue * m_blue + np.float32(EPSILON)
    rg = mean(red * green) - m_red * m_green
    rb = mean(red * blue) - m_red * m_blue
    gb = mean(green * blue) - m_green * m_blue
    # Its inverse by cofactors; positive definite thanks to epsilon.
    i_rr, i_rg, i_rb = gg * bb - gb * gb, gb * rb - rg * bb, rg * gb - gg * rb
    i_gg, i_gb, i_bb = rr * bb - rb * rb, rb * rg - rr * gb, rr * gg - rg * rg
    determinant = i_rr * rr + i_rg * rg + i_rb * rb
    c_red = mean(red * target) - m_red * m_target
    c_green = mean(green * target) - m_green * m_target
    c_blue = mean(blue * target) - m_blue * m_target
    a_red = (i_rr * c_red + i_rg * c_green + i_rb * c_blue) / determinant
    a_green = (i_rg * c_red + i_gg * c_green + i_gb * c_blue) / determinant
    a_blue = (i_rb * c_red + i_gb * c_green + i_bb * c_blue) / determinant
    offset = m_target - a_red * m_red - a_green * m_green - a_blue * m_blue
    model: Floats = mean(cv2.merge((a_red, a_green, a_blue, offset)))
    return model * np.float32(1 / 255.0)
