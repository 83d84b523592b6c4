"""The foreground's own colours where alpha is partial: what shows of the old background taken out.

There a pixel is a mixture, I = alpha F + (1 - alpha) B. F and B are estimated from coarse to fine,
each level starting from the one before it, with the step of blur-fusion: means of foreground and
background by their weights, then F corrected by what the mixture leaves unexplained. Levels as in
Germer et al., "Fast Multi-Level Foreground Estimation" (2020, https://arxiv.org/abs/2006.14970),
the step from Forte, "Approximate Fast Foreground Colour Estimation" (2021).
"""

from __future__ import annotations

from collections.abc import Iterator

import cv2
import numpy as np

from app.codecs.picture import Pixels
from app.pipelines.segment.matte import Floats

RADIUS = 3
"""Of the window of each level, in its own pixels."""
FINEST_PIXELS = 1_000_000
"""The last level is at half the picture's resolution up to 4 MP, and then at a quarter, …"""
WHOLE_PIXELS = 200_000
"""Levels of at most so many pixels are computed everywhere, the last one only along edges."""
COARSEST = 64
TILE = 256
VISIBLE, OPAQUE = 8, 248
"""Alphas (of 255) from which a pixel shows, and from which it counts as the foreground alone."""
OWN = 230
"""From this alpha on the pixel's own colour takes over: detail at the rim of the foreground."""
BROAD = 0.05
"""A partial region wider than this part of the longer side is no edge, and keeps its colours."""
EPSILON = np.float32(1e-5)

_OWN_SHARE = np.clip((np.arange(256, dtype=np.float32) - OWN) / (255 - OWN), 0, 1)


def foreground_colours(pixels: Pixels, alpha: Pixels) -> Pixels:
    """Colours (H, W, 3) for a picture (H, W, 3 or 4) and its alpha (H, W).

    They differ from the picture's only where alpha is partial along an edge.
    """
    result: Pixels = np.array(pixels[..., :3], order="C")
    finest = 2
    while alpha.size > FINEST_PIXELS * finest * finest:
        finest *= 2
    partial = cv2.inRange(alpha, VISIBLE, OPAQUE - 1)
    if not partial.any():
        return result
    coarse = _coarse(result, alpha, 2 * finest)
    for rows, columns in _tiles(*alpha.shape):
        if cv2.countNonZero(partial[rows, columns]):
            # Tiles overlap: what is read is the picture, and not what is finished already.
            _finish(pixels, alpha, coarse, (rows, columns), finest, result[rows, columns])
    return result


def _tiles(height: int, width: int) -> Iterator[tuple[slice, slice]]:
    for top in range(0, height, TILE):
        for left in range(0, width, TILE):
            yield slice(top, min(height, top + TILE)), slice(left, min(width, left + TILE))


def _coarse(picture: Pixels, alpha: Pixels, step: int) -> tuple[Floats, Floats, Floats]:
    """F and B (h, w, 3) of the levels computed whole, and where alpha is no edge (h, w)."""
    height, width = alpha.shape
    while height * width > WHOLE_PIXELS * step * step:
        step *= 2
    size = (max(1, width // step), max(1, height // step))
    levels = [
        (
            cv2.resize(picture, size, interpolation=cv2.INTER_AREA).astype(np.float32),
            cv2.resize(alpha, size, interpolation=cv2.INTER_AREA).astype(np.float32) / 255,
        )
    ]
    broad = _broad(levels[0][1])
    while max(levels[-1][1].shape) > COARSEST:
        levels.append((_halved(levels[-1][0]), _halved(levels[-1][1])))
    front = back = levels[-1][0]
    for small, share in reversed(levels):
        size = (small.shape[1], small.shape[0])
        front = cv2.resize(front, size, interpolation=cv2.INTER_LINEAR)
        back = cv2.resize(back, size, interpolation=cv2.INTER_LINEAR)
        front, back = _fuse(small, cv2.merge((share, share, share)), front, back)
    return front, back, broad


def _halved(plane: Floats) -> Floats:
    size = (max(1, plane.shape[1] // 2), max(1, plane.shape[0] // 2))
    smaller: Floats = cv2.resize(plane, size, interpolation=cv2.INTER_AREA)
    return smaller


def _broad(share: Floats) -> Floats:
    side = 2 * max(1, round(BROAD / 2 * max(share.shape))) + 1
    partial = cv2.inRange(share, VISIBLE / 255, OPAQUE / 255)
    opened = cv2.morphologyEx(
        partial,
        cv2.MORPH_OPEN,
        np.ones((side, side), np.uint8),
        borderType=cv2.BORDER_REPLICATE,
    )
    soft: Floats = cv2.blur(opened.astype(np.float32) / 255, (side // 2, side // 2))
    return soft


def _fuse(picture: Floats, share: Floats, front: Floats, back: Floats) -> tuple[Floats, Floats]:
    """One step of blur-fusion on (h, w, 3): the next F, and the B that it was made with."""
    window = (2 * RADIUS + 1, 2 * RADIUS + 1)
    weight = cv2.blur(share, window)
    front = cv2.blur(cv2.multiply(front, share), window)
    cv2.divide(front, weight + EPSILON, dst=front)
    back = cv2.blur(cv2.subtract(back, cv2.multiply(back, share)), window)
    cv2.divide(back, np.float32(1) + EPSILON - weight, dst=back)
    unexplained = cv2.subtract(picture, back)
    unexplained -= cv2.multiply(share, cv2.subtract(front, back))
    front += cv2.multiply(share, unexplained)
    return np.clip(front, 0, 255, out=front), back


def _finish(
    picture: Pixels,
    alpha: Pixels,
    coarse: tuple[Floats, Floats, Floats],
    tile: tuple[slice, slice],
    finest: int,
    result: Pixels,
) -> None:
    """Compute the finest level of one tile, with a margin, and write its colours to `result`."""
    height, width = alpha.shape
    margin = 2 * RADIUS * finest
    top, left = max(0, tile[0].start - margin), max(0, tile[1].start - margin)
    area = (slice(top, min(height, tile[0].stop + margin)),
            slice(left, min(width, tile[1].stop + margin)))  # fmt: skip
    tall, wide = area[0].stop - top, area[1].stop - left
    size = (max(1, wide // finest), max(1, tall // finest))

    def enlarged(plane: Floats, size: tuple[int, int]) -> Floats:
        # Centres of pixels of the tile, in the coarse level's.
        across, down = plane.shape[1] / width, plane.shape[0] / height
        each, every = wide / size[0] * across, tall / size[1] * down
        turn = np.array([[each, 0, left * across + each / 2 - 0.5],
                         [0, every, top * down + every / 2 - 0.5]])  # fmt: skip
        moved: Floats = cv2.warpAffine(
            plane,
            turn,
            size,
            flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
            borderMode=cv2.BORDER_REPLICATE,
        )
        return moved

    own_colours = np.ascontiguousarray(picture[area][..., :3])
    small = cv2.resize(own_colours, size, interpolation=cv2.INTER_AREA).astype(np.float32)
    share = cv2.resize(alpha[area], size, interpolation=cv2.INTER_AREA).astype(np.float32) / 255
    front, _ = _fuse(
        small,
        cv2.merge((share, share, share)),
        enlarged(coarse[0], size),
        enlarged(coarse[1], size),
    )
    colours = cv2.resize(front.astype(np.uint8), (wide, tall), interpolation=cv2.INTER_LINEAR)
    own = cv2.LUT(np.ascontiguousarray(alpha[area]), _OWN_SHARE)
    if coarse[2].any():
        own = np.maximum(own, enlarged(coarse[2], (wide, tall)))
    mixed = cv2.blendLinear(own_colours, colours, own, np.float32(1) - own)
    inner = (slice(tile[0].start - top, tile[0].stop - top),
             slice(tile[1].start - left, tile[1].stop - left))  # fmt: skip
    result[...] = mixed[inner]
