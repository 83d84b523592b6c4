"""Closed-form matting near unsure pixels of the mask, for hair and fur; `guided` everywhere else.

The solution is the alpha that is closest to a linear function of the colours in every window (Levin
et al., "A Closed-Form Solution to Natural Image Matting", 2008). The matrix of this linear system,
the matting Laplacian, is never built: its product with an alpha is a few box filters (He et al.,
"Fast Matting Using Large Kernel Matting Laplacian Matrices", 2010). To limit the time, the system
is solved on a reduced picture with a limited number of iterations of conjugate gradients.
"""

import cv2
import numpy as np

from app.tasks.codecs.picture import Floats, Pixels, bands
from app.tasks.segment import matte
from app.tasks.segment.guided import ColourModel, guided_alpha, opened, undecided

SOLVED_PIXELS = 250_000
ROUNDS = 60
SURE = (0.05, 0.95)
REACH = 0.012
"""How far the band extends beyond the unsure pixels, as a fraction of the longer side."""
EPSILON = 1e-5
PRIOR = 0.003
"""How strongly the result of `guided` attracts the alpha."""
NARROW = 0.002
"""Radius of a disc, as a fraction of the longer side. An edge is sharp, and keeps its value, where
such a disc does not fit into the partial alpha of `guided`."""

RADIUS = 1
"""Radius of the Laplacian's windows, in pixels of the reduced picture."""


def matted_alpha(pixels: Pixels, mask: Floats) -> Pixels:
    """Alpha (H, W) for a picture (H, W, 3 or 4) and a mask of any size, 0 to 1.

    The solution is not used at sharp edges, nor in regions that are undecided throughout.
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
    small = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)[..., :3]
    start: Floats = cv2.resize(alpha, size, interpolation=cv2.INTER_AREA).astype(np.float32) / 255
    fixed = np.where(band > 0, start, (level > 0.5).astype(np.float32))
    picture = small.astype(np.float32) / np.float32(255)
    model = ColourModel(picture, radius=RADIUS, epsilon=EPSILON, digits=np.float64)
    solution = solved(model, fixed, band, start)
    change = (solution - start) * broad(start, band)
    change -= np.minimum(change, 0) * thin(level)
    region = undecided(mask, rows, columns)
    if region is not None:
        change *= np.float32(1) - region
    change *= np.float32(255)
    for part in bands(height, width):
        more = matte.sampled(change, part, width, scale=(columns / width, rows / height))
        alpha[part] = np.clip(np.rint(alpha[part] + more), 0, 255)
    return alpha


def unsure(level: Floats) -> Pixels:
    """The band to solve (h, w): 1 at and near uncertain pixels and edges of the mask."""
    doubt = cv2.inRange(level, *SURE) // 255
    # A hard edge of the mask has no pixels in doubt, so its gradient is added.
    rises = cv2.morphologyEx((level > 0.5).astype(np.uint8), cv2.MORPH_GRADIENT, np.ones((3, 3)))
    side = _reach(level)
    return cv2.dilate(doubt | rises, np.ones((side, side), np.uint8))


def thin(level: Floats) -> Floats:
    """1 (h, w) in and near parts that are narrower than the band, such as a tripod's legs.

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
    """The weight (h, w) of the solution: 0 outside the band and at sharp edges of `start`."""
    radius = max(1, round(NARROW * max(start.shape)))
    side = 2 * radius + 1
    wide = opened(cv2.inRange(start, *SURE), side)
    near = cv2.dilate(wide // 255, np.ones((side, side), np.uint8))
    return cv2.GaussianBlur(near.astype(np.float32), (0, 0), radius) * band


def unexplained(model: ColourModel, alpha: Floats) -> Floats:
    """The part of the alpha that the colours do not explain.

    This is the matting Laplacian, divided by the window's size, times the alpha.
    """
    slopes, rest = model.fit(alpha)
    for slope, plane in zip(slopes, model.colours, strict=True):
        rest += slope * plane
    return np.subtract(alpha, rest, out=rest)


def solved(model: ColourModel, start: Floats, band: Pixels, target: Floats) -> Floats:
    """Solve for the alpha inside the band, with conjugate gradients.

    Outside the band, alpha is `start`. Inside, PRIOR is the weight that pulls it to `target`.
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
