"""Estimates the foreground's own colours where alpha is partial, without the old background.

Where alpha is partial, a pixel's colour I is a mixture of foreground F and background B:
I = alpha F + (1 - alpha) B. F and B are estimated on levels: reduced pictures, the coarsest first
(Germer et al., "Fast Multi-Level Foreground Estimation", 2020, https://arxiv.org/abs/2006.14970).
On each level, one step of blur-fusion is computed (Forte, "Approximate Fast Foreground Colour
Estimation", 2021).
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TypeVar

import cv2
import numpy as np

from paddlepool.tasks.codecs.picture import Floats, Pixels
from paddlepool.tasks.segment.matte import Tile, tiles

Plane = TypeVar("Plane", Pixels, Floats)

RADIUS = 3
"""Radius of each level's window, in pixels of that level."""
FINEST_PIXELS = 1_000_000
"""Maximum pixels of the last level. Its sides are the picture's, divided by a power of two."""
WHOLE_PIXELS = 200_000
"""Maximum pixels of a level computed as a whole. The last level is computed only along edges."""
COARSEST = 64
TILE = 64
"""Side of the tile that is computed at once, in pixels of the last level."""
VISIBLE, OPAQUE = 8, 248
"""Alphas (of 255) from which a pixel is visible, and from which it counts as pure foreground."""
OWN = 230
"""Above this alpha (of 255), the pixel's own colour is used more and more, to keep detail at the
rim; at 255 it is used alone."""
BROAD = 0.05
"""A region of partial alpha wider than this fraction of the longer side keeps its colours."""
EPSILON = np.float32(1e-5)

_OWN_SHARE = np.clip((np.arange(256, dtype=np.float32) - OWN) / (255 - OWN), 0, 1)


def foreground_colours(pixels: Pixels, alpha: Pixels, small: Pixels | None = None) -> Pixels:
    """Return foreground colours (H, W, 3) for a picture (H, W, 3 or 4) and its alpha (H, W).

    The colours are the picture's own, except along edges, where alpha is partial. If the picture
    itself is transparent there, or alpha is partial in a broad region (BROAD), they stay its own.
    `small` is the picture's small_picture(), if it exists already.
    """
    result: Pixels = np.array(pixels[..., :3], order="C")
    for _, parts in edge_colours(pixels, alpha, small_picture(pixels) if small is None else small):
        for place, colours in parts:
            result[place] = colours
    return result


def small_picture(pixels: Pixels) -> Pixels:
    """Return the picture in the colours (h, w, 3) and size of the first level of edge_colours()."""
    return _reduced(pixels, _steps(*pixels.shape[:2])[0])[..., :3]


def edge_colours(
    pixels: Pixels, alpha: Pixels, small: Pixels
) -> Iterator[tuple[slice, list[tuple[Tile, Pixels]]]]:
    """Yield the picture's rows from top to bottom, with the parts of them that may differ from it.

    A part is its place and its colours in the result of foreground_colours(); the parts do not
    overlap. `small` is the small_picture().
    """
    height, width = alpha.shape
    partial = cv2.inRange(alpha, VISIBLE, OPAQUE - 1)
    if not cv2.countNonZero(partial):
        yield slice(0, height), []
        return
    first, last = _steps(height, width)
    rows, columns = height // last, width // last
    clear = None
    if pixels.shape[2] == 4:
        clear = cv2.inRange(np.ascontiguousarray(pixels[..., 3]), 0, 254)
    coarse = [_enlarged(plane, rows, columns) for plane in _coarse(small, alpha, clear, first)]
    tiled = tiles(height, width, step=last, side=TILE)
    for (top, bottom), row in groupby(tiled, key=lambda tile: (tile[1][0].start, tile[1][0].stop)):
        parts = []
        for blocks, place in row:
            if cv2.countNonZero(partial[place]):
                blocks, place = _edge(alpha, blocks, place, last)
                colours = _finished(pixels, alpha, coarse, blocks, place, last)
                parts.append((place, colours))
        yield slice(top, bottom), parts


def _steps(height: int, width: int) -> tuple[int, int]:
    """Return the reduction of the last level that is computed as a whole, and of the last one."""
    last = 2
    while height * width > FINEST_PIXELS * last * last:
        last *= 2
    while last > min(height, width):
        last //= 2
    first = 2 * last
    while height * width > WHOLE_PIXELS * first * first:
        first *= 2
    return first, last


def _edge(alpha: Pixels, blocks: Tile, place: Tile, step: int) -> tuple[Tile, Tile]:
    """Return the part of a tile, in blocks and in pixels, outside which alpha is 0 or 255."""
    left, top, width, height = cv2.boundingRect(cv2.inRange(alpha[place], 1, 254))
    sides = []
    for first, count, whole, pixels in zip(
        (top, left), (height, width), blocks, place, strict=True
    ):
        start = min(whole.start + first // step, whole.stop - 1)
        stop = min(whole.start - (-(first + count) // step), whole.stop)
        end = pixels.stop if stop == whole.stop else stop * step
        sides.append((slice(start, stop), slice(start * step, end)))
    (rows, tall), (columns, wide) = sides
    return (rows, columns), (tall, wide)


def _coarse(
    small: Pixels, alpha: Pixels, clear: Pixels | None, step: int
) -> tuple[Floats, Floats, Floats]:
    """Return F and B (h, w, 3) of the finest level that is computed as a whole, and a map (h, w).

    The map is 1 where colours stay the picture's own: in broad regions of partial alpha, and where
    `clear` is not 0. `small` is the picture, reduced by `step` as for that level.
    """
    levels = [(small.astype(np.float32), _share(alpha, step))]
    share = levels[0][1]
    partial = cv2.inRange(share, VISIBLE / 255, OPAQUE / 255)
    broad = _spread(cv2.erode(partial, _window(share), borderType=cv2.BORDER_REPLICATE))
    if clear is not None:
        broad = np.maximum(broad, _spread(cv2.inRange(_reduced(clear, step), 1, 255)))
    while max(levels[-1][1].shape) > COARSEST:
        levels.append((_halved(levels[-1][0]), _halved(levels[-1][1])))
    front = back = levels[-1][0]
    for colours, share in reversed(levels):
        size = (colours.shape[1], colours.shape[0])
        front = cv2.resize(front, size, interpolation=cv2.INTER_LINEAR)
        back = cv2.resize(back, size, interpolation=cv2.INTER_LINEAR)
        front, back = _fuse(colours, share, front, back)
    return front, back, broad


def _share(alpha: Pixels, step: int) -> Floats:
    """Return alpha from 0 to 1, reduced by `step`."""
    return _reduced(alpha, step).astype(np.float32) / np.float32(255)


def _reduced(plane: Pixels, step: int) -> Pixels:
    """Return the means of blocks of step x step pixels; `step` is a power of two.

    Rows and columns at the end that fill no block are left out.
    """
    rows, columns = max(1, plane.shape[0] // step), max(1, plane.shape[1] // step)
    plane = plane[: rows * step, : columns * step]
    # OpenCV is several times faster for a factor of two than for any other.
    while step > 1:
        plane = _halved(plane)
        step //= 2
    return plane


def _enlarged(plane: Floats, rows: int, columns: int) -> Floats:
    factor = 1
    while plane.shape[0] * factor * 2 <= rows or plane.shape[1] * factor * 2 <= columns:
        factor *= 2
    larger = cv2.resize(plane, None, fx=factor, fy=factor, interpolation=cv2.INTER_LINEAR)
    larger = larger[:rows, :columns]
    below, beside = rows - larger.shape[0], columns - larger.shape[1]
    if not below and not beside:
        return larger
    return cv2.copyMakeBorder(larger, 0, below, 0, beside, cv2.BORDER_REPLICATE)


def _halved(plane: Plane) -> Plane:
    size = (max(1, plane.shape[1] // 2), max(1, plane.shape[0] // 2))
    return cv2.resize(plane, size, interpolation=cv2.INTER_AREA)


def _spread(marked: Pixels) -> Floats:
    """Return a map (h, w): 1 at and around marked pixels, and falling to 0 farther away."""
    window = _window(marked)
    near = cv2.dilate(marked, window)
    half = len(window) // 2
    return cv2.blur(near.astype(np.float32) / 255, (half, half))


def _window(plane: Plane) -> Pixels:
    side = 2 * max(1, round(BROAD / 2 * max(plane.shape))) + 1
    return np.ones((side, side), np.uint8)


def _fuse(picture: Floats, share: Floats, front: Floats, back: Floats) -> tuple[Floats, Floats]:
    """Do one step of blur-fusion: return the next F and the B that it was computed with.

    `share` is alpha, from 0 to 1.
    """
    window = (2 * RADIUS + 1, 2 * RADIUS + 1)
    weight = cv2.blur(share, window)
    rest = np.float32(1) + EPSILON - weight
    weight += EPSILON
    shares = cv2.merge((share, share, share))
    front = cv2.blur(cv2.multiply(front, shares), window)
    cv2.divide(front, cv2.merge((weight, weight, weight)), dst=front)
    back = cv2.blur(cv2.subtract(back, cv2.multiply(back, shares)), window)
    cv2.divide(back, cv2.merge((rest, rest, rest)), dst=back)
    unexplained = cv2.subtract(picture, back)
    unexplained -= cv2.multiply(shares, cv2.subtract(front, back))
    front += cv2.multiply(shares, unexplained)
    return np.clip(front, 0, 255, out=front), back


def _finished(
    picture: Pixels, alpha: Pixels, coarse: Sequence[Floats], blocks: Tile, place: Tile, step: int
) -> Pixels:
    """Compute the last level for `blocks` and a margin; return the colours of the pixels `place`.

    `coarse` is the result of _coarse(), enlarged to the size of that level.
    """
    margin = RADIUS + 1  # for the window, and for a neighbour to interpolate with
    top, left = max(0, blocks[0].start - margin), max(0, blocks[1].start - margin)
    bottom, right = blocks[0].stop + margin, blocks[1].stop + margin
    near = (slice(top, bottom), slice(left, right))
    area = (slice(top * step, bottom * step), slice(left * step, right * step))
    small = _reduced(np.ascontiguousarray(picture[area][..., :3]), step).astype(np.float32)
    front, _ = _fuse(small, _share(alpha[area], step), coarse[0][near], coarse[1][near])

    def in_place(plane: Floats) -> Floats:
        # One more block at the end, for the remainder of the picture.
        plane = cv2.copyMakeBorder(plane, 0, 1, 0, 1, cv2.BORDER_REPLICATE)
        larger: Floats = cv2.resize(plane, None, fx=step, fy=step, interpolation=cv2.INTER_LINEAR)
        return larger[
            place[0].start - top * step : place[0].stop - top * step,
            place[1].start - left * step : place[1].stop - left * step,
        ]

    own = cv2.LUT(alpha[place], _OWN_SHARE)
    if cv2.countNonZero(coarse[2][near]):
        own = np.maximum(own, in_place(coarse[2][near]))
    colours = in_place(front)
    detail = cv2.subtract(np.ascontiguousarray(picture[place][..., :3]), colours, dtype=cv2.CV_32F)
    cv2.multiply(detail, cv2.merge((own, own, own)), dst=detail)
    return cv2.add(colours, detail, dtype=cv2.CV_8U)
