"""Make a mask follow the picture's edges: `guided`, and `matting` for hair and fur at the edges.

`guided` is the fast guided filter, with the colour picture as guide: the linear model
alpha = a . colour + b is fitted in small windows of a reduced picture and applied to the full one
(He, Sun and Tang, "Guided Image Filtering", 2013; He and Sun, "Fast Guided Filter", 2015,
https://arxiv.org/abs/1505.00996).

`matting` is closed-form matting near unsure pixels of the mask. It solves a linear system for the
alpha that is closest to a linear function of the colours in every window (Levin et al., "A
Closed-Form Solution to Natural Image Matting", 2008). The system's matrix, the matting Laplacian,
is never built: its product with an alpha is a few box filters (He et al., "Fast Matting Using Large
Kernel Matting Laplacian Matrices", 2010). To limit the time, the system is solved on a reduced
picture with a limited number of iterations of conjugate gradients.
"""

from itertools import combinations_with_replacement
from typing import Any

import cv2
import numpy as np

from paddlepool.tasks.codecs.picture import Floats, Pixels, bands
from paddlepool.tasks.segment.matte import Tile, sampled, tiles

WORKING_PIXELS = 120_000
RADIUS = 0.01
"""Window radius as a fraction of the longer side."""
EPSILON = 1e-3
LEVELS = 0.2
"""Values up to LEVELS become 0, values from 1 - LEVELS become 1, and those between are stretched,
before and after the fit: the network's edges are blurred, but the object's are not translucent.

The constants of `guided` were chosen by the error near the edges of known masks."""
UNDECIDED = (0.15, 0.85)
BROAD = 0.015
"""Radius of a disc, as a fraction of the mask's longer side. An area of undecided values is a
region if such a disc fits into it, and an edge otherwise."""
TILE = 128
"""Side in pixels of the tile that is computed at once: small enough for the processor's cache."""

_SUM = np.ones(4, np.float32)


def guided_alpha(pixels: Pixels, mask: Floats) -> Pixels:
    """Return the alpha (H, W) of `guided` for a picture (H, W, 3) and a mask of any size, 0 to 1.

    Undecided regions keep the mask's own value, because colours do not show the foreground there.
    """
    height, width = pixels.shape[:2]
    step = max(1, round((height * width / WORKING_PIXELS) ** 0.5))
    step = min(step, height, width)
    rows, columns = height // step, width // step
    target = cv2.resize(mask, (columns, rows), interpolation=cv2.INTER_LINEAR)
    stretched = np.clip((target - np.float32(LEVELS)) / np.float32(1.0 - 2 * LEVELS), 0, 1)
    radius = max(1, round(RADIUS * max(rows, columns)))
    full, empty = _certain_regions(stretched, radius)
    share = undecided(mask, rows, columns)
    unsettled: Pixels = (full | empty) ^ np.uint8(1)
    if share is not None:
        unsettled |= share > 0
    alpha = np.zeros((height, width), np.uint8)
    # The smoothed linear model: slopes and offset, all in units of 1/255. In certain regions, it is
    # the mask's own 0 or 1.
    model = np.zeros((rows, columns, 4), np.float32)
    model[..., 3] = full * np.float32(1 / 255)
    area = _around(unsettled, 2 * radius + 2)
    if area is not None:
        tall, wide = area
        part = pixels[tall.start * step : tall.stop * step, wide.start * step : wide.stop * step]
        size = (wide.stop - wide.start, tall.stop - tall.start)
        small = cv2.resize(part, size, interpolation=cv2.INTER_AREA).astype(np.float32)
        colours = ColourModel(
            small / np.float32(255), radius=radius, epsilon=EPSILON, digits=np.float32
        )
        slopes, offset = colours.fit(stretched[area])
        model[area] = cv2.merge((*slopes, offset)) * np.float32(1 / 255)
    if share is not None:
        model *= (np.float32(1) - share)[..., None]
        # The last stretch turns this into the mask's value again.
        model[..., 3] += share * (target * np.float32(1 - 2 * LEVELS) + np.float32(LEVELS)) / 255
    # Stretch and scale to 0…255 here: _apply() then only sums over the channels.
    scale = np.float32(255.0 / (1.0 - 2 * LEVELS))
    model *= scale
    model[..., 3] -= np.float32(LEVELS / 255) * scale
    padded = cv2.copyMakeBorder(model, 1, 2, 1, 2, cv2.BORDER_REPLICATE)
    for blocks, place in tiles(height, width, step=step, side=max(1, TILE // step)):
        if unsettled[blocks].any():
            _apply(padded, pixels, place, step, alpha)
        elif full[blocks[0].start, blocks[1].start]:
            alpha[place] = 255
    return alpha


def _apply(padded: Floats, pixels: Pixels, place: Tile, step: int, alpha: Pixels) -> None:
    """Apply the linear model to the colours of `place`, and write the result into `alpha`.

    `padded` is the model, extended on both axes by one block at the start and two at the end.
    """
    rows, columns = place
    blocks = padded[
        rows.start // step : -(-rows.stop // step) + 2,
        columns.start // step : -(-columns.stop // step) + 2,
    ]
    tall, wide = rows.stop - rows.start, columns.stop - columns.start
    model = cv2.resize(blocks, None, fx=step, fy=step, interpolation=cv2.INTER_LINEAR)
    model = model[step : step + tall, step : step + wide]
    # Red, green, blue and 255: in the model, b is in units of 1/255, too.
    colour = cv2.cvtColor(np.ascontiguousarray(pixels[place]), cv2.COLOR_RGB2RGBA)
    value = cv2.multiply(model, colour, dtype=cv2.CV_32F).reshape(-1, 4) @ _SUM
    np.clip(value, 0.0, 255.0, out=value)
    alpha[place] = (value + np.float32(0.5)).reshape(tall, wide)


def _certain_regions(stretched: Floats, radius: int) -> tuple[Pixels, Pixels]:
    """Return two maps (h, w): where the mask is certainly foreground, and certainly background.

    The first map is 1 where all windows that affect the pixel contain only ones of the mask, the
    second where they contain only zeros.
    """
    reach = np.ones((4 * radius + 3, 4 * radius + 3), np.uint8)
    full = cv2.erode((stretched >= 1).astype(np.uint8), reach)
    empty = cv2.erode((stretched <= 0).astype(np.uint8), reach)
    return full, empty


def _around(marked: Pixels, margin: int) -> Tile | None:
    left, top, width, height = cv2.boundingRect(marked)
    if not width:
        return None
    return (
        slice(max(0, top - margin), min(marked.shape[0], top + height + margin)),
        slice(max(0, left - margin), min(marked.shape[1], left + width + margin)),
    )


def undecided(mask: Floats, rows: int, columns: int) -> Floats | None:
    """Return the weight (rows, columns) of the mask's own value: 1 inside undecided regions.

    Outside these, the weight falls to 0. An undecided region has values within UNDECIDED and is as
    broad as BROAD says. Returns None if there is no such region.
    """
    radius = max(1, round(BROAD * max(mask.shape)))
    region = opened(cv2.inRange(mask, *UNDECIDED), 2 * radius + 1)
    if not region.any():
        return None
    soft = cv2.GaussianBlur(region.astype(np.float32) / 255, (0, 0), radius / 2)
    return cv2.resize(soft, (columns, rows), interpolation=cv2.INTER_LINEAR)


def opened(marked: Pixels, side: int) -> Pixels:
    """Return the marked pixels without the parts into which no disc of diameter `side` fits."""
    disc = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (side, side))
    return cv2.morphologyEx(marked, cv2.MORPH_OPEN, disc, borderType=cv2.BORDER_REPLICATE)


class ColourModel:
    """Predicts a plane from the colours (h, w, 3) of a picture, 0 to 1, by local linear models.

    Windows have 2 * radius + 1 pixels a side. If `epsilon` is very small, `digits` must be double
    precision: for similar colours, the terms of the determinant nearly cancel.
    """

    def __init__(
        self, picture: Floats, *, radius: int, epsilon: float, digits: type[np.floating[Any]]
    ) -> None:
        self._window = (2 * radius + 1, 2 * radius + 1)
        self.colours = cv2.split(picture)
        self._means = [self._mean(plane) for plane in self.colours]
        # Covariance of the colours: symmetric 3 x 3 at each pixel, epsilon on the diagonal.
        rr, rg, rb, gg, gb, bb = (
            self._mean(one * two) - mean_one * mean_two
            for (one, mean_one), (two, mean_two) in combinations_with_replacement(
                zip(self.colours, self._means, strict=True), 2
            )
        )
        rr, gg, bb = (np.maximum(plane, 0) + np.float32(epsilon) for plane in (rr, gg, bb))
        rr, rg, rb, gg, gb, bb = (plane.astype(digits) for plane in (rr, rg, rb, gg, gb, bb))
        # Its inverse, by cofactors. The determinant is not 0: epsilon makes it positive definite.
        i_rr, i_rg, i_rb = gg * bb - gb * gb, gb * rb - rg * bb, rg * gb - gg * rb
        i_gg, i_gb, i_bb = rr * bb - rb * rb, rb * rg - rr * gb, rr * gg - rg * rg
        share = 1 / (i_rr * rr + i_rg * rg + i_rb * rb)
        rr, rg, rb, gg, gb, bb = (
            (cofactor * share).astype(np.float32, copy=False)
            for cofactor in (i_rr, i_rg, i_rb, i_gg, i_gb, i_bb)
        )
        self._inverse = (rr, rg, rb), (rg, gg, gb), (rb, gb, bb)

    def fit(self, plane: Floats) -> tuple[list[Floats], Floats]:
        """Fit the models to a plane (h, w), and return their slopes and offset at each pixel.

        The slopes are those for red, green and blue. All are means over the pixel's windows.
        """
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
        return cv2.blur(plane, self._window, borderType=cv2.BORDER_REFLECT)


SOLVED_PIXELS = 250_000
ROUNDS = 60
SURE = (0.05, 0.95)
"""Values of the mask below the first number or above the second one are sure."""
REACH = 0.012
"""How far the band extends beyond the unsure pixels, as a fraction of the longer side."""
PRIOR = 0.003
"""How strongly the result of `guided` attracts the alpha."""
NARROW = 0.002
"""Radius of a disc, as a fraction of the longer side. An edge is sharp, and keeps its value, where
such a disc does not fit into the partial alpha of `guided`."""


def matted_alpha(pixels: Pixels, mask: Floats) -> Pixels:
    """Return the alpha (H, W) of `matting` for a picture (H, W, 3) and a mask of any size, 0 to 1.

    Sharp edges, and regions that are undecided throughout, keep the alpha of `guided`.
    """
    alpha = guided_alpha(pixels, mask)
    height, width = alpha.shape
    scale = min(1.0, (SOLVED_PIXELS / (height * width)) ** 0.5)
    rows, columns = max(1, int(height * scale)), max(1, int(width * scale))
    size = (columns, rows)
    level = cv2.resize(mask, size, interpolation=cv2.INTER_LINEAR)
    band = unsure(level)
    if not band.any():
        return alpha
    small = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)
    start: Floats = cv2.resize(alpha, size, interpolation=cv2.INTER_AREA).astype(np.float32) / 255
    fixed = np.where(band > 0, start, (level > 0.5).astype(np.float32))
    picture = small.astype(np.float32) / np.float32(255)
    model = ColourModel(picture, radius=1, epsilon=1e-5, digits=np.float64)
    solution = solved(model, fixed, band, start)
    change = (solution - start) * broad(start, band)
    change -= np.minimum(change, 0) * thin(level)
    region = undecided(mask, rows, columns)
    if region is not None:
        change *= np.float32(1) - region
    change *= np.float32(255)
    for part in bands(height, width):
        more = sampled(change, part, width, scale=(columns / width, rows / height))
        alpha[part] = np.clip(np.rint(alpha[part] + more), 0, 255)
    return alpha


def unsure(level: Floats) -> Pixels:
    """Return a map (h, w): 1 in the band where alpha is solved, else 0.

    The band contains what is near an unsure pixel or an edge of the mask `level` (h, w). A pixel is
    unsure if its value is from the first to the second number of SURE.
    """
    doubt = cv2.inRange(level, *SURE) // 255
    # A hard edge of the mask has no pixels in doubt, so its gradient is added.
    rises = cv2.morphologyEx((level > 0.5).astype(np.uint8), cv2.MORPH_GRADIENT, np.ones((3, 3)))
    side = _reach(level)
    return cv2.dilate(doubt | rises, np.ones((side, side), np.uint8))


def thin(level: Floats) -> Floats:
    """Return a map (h, w): 1 in and near parts narrower than the band, such as a tripod's legs.

    No pixel of such a part is fixed, so the solution would make it background.
    """
    side = _reach(level)
    whole = (level > 0.5).astype(np.uint8)
    narrow = whole - opened(whole, side)
    # Remove slivers: they are corners of wide parts, not narrow parts.
    narrow = cv2.morphologyEx(narrow, cv2.MORPH_OPEN, np.ones((3, 3), np.uint8))
    near = cv2.dilate(narrow, np.ones((side, side), np.uint8))
    return cv2.GaussianBlur(near.astype(np.float32), (0, 0), side / 4)


def _reach(level: Floats) -> int:
    longest: int = max(level.shape)
    return 2 * round(REACH * longest) + 1


def broad(start: Floats, band: Pixels) -> Floats:
    """Return the solution's weight (h, w), up to 1: 0 outside the band and at sharp edges of alpha.

    `start` is the alpha of `guided`. NARROW says which edges are sharp.
    """
    radius = max(1, round(NARROW * max(start.shape)))
    side = 2 * radius + 1
    wide = opened(cv2.inRange(start, *SURE), side)
    near = cv2.dilate(wide // 255, np.ones((side, side), np.uint8))
    return cv2.GaussianBlur(near.astype(np.float32), (0, 0), radius) * band


def unexplained(model: ColourModel, alpha: Floats) -> Floats:
    """Return the difference of an alpha (h, w) from its linear model of the colours.

    This is the matting Laplacian, divided by the window's size, times the alpha.
    """
    slopes, rest = model.fit(alpha)
    for slope, plane in zip(slopes, model.colours, strict=True):
        rest += slope * plane
    return np.subtract(alpha, rest, out=rest)


def solved(model: ColourModel, start: Floats, band: Pixels, target: Floats) -> Floats:
    """Solve for the alpha (h, w) inside the band, with conjugate gradients.

    `band` is 1 inside and 0 outside, where alpha is `start`. Inside, PRIOR is the weight that pulls
    it to `target`. The solver takes at most ROUNDS steps.
    """
    free, weight = band.astype(np.float32), np.float32(PRIOR)
    alpha = start.copy()
    rest = (weight * (target - alpha) - unexplained(model, alpha)) * free
    step, size = rest.copy(), float((rest * rest).sum())
    for _ in range(ROUNDS):
        if size < 1e-6:
            break
        image = (unexplained(model, step) + weight * step) * free
        length = np.float32(size / max(float((step * image).sum()), 1e-20))
        alpha += length * step
        rest -= length * image
        before, size = size, float((rest * rest).sum())
        step = rest + np.float32(size / before) * step
    return np.clip(alpha, 0, 1)
