"""Framing: the canvas, the subject's place on it, and the subject's pixels moved there.

The canvas may extend beyond the picture on any side. All lengths are in whole pixels.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from app.tasks.codecs.picture import Pixels


@dataclass(frozen=True, slots=True)
class Area:
    """A rectangle of a plane, in pixels; `top` and `left` may be negative."""

    top: int
    left: int
    height: int
    width: int

    @property
    def bottom(self) -> int:
        return self.top + self.height

    @property
    def right(self) -> int:
        return self.left + self.width

    @property
    def slices(self) -> tuple[slice, slice]:
        return slice(self.top, self.bottom), slice(self.left, self.right)


def canvas_of(subject: Area, margins: Sequence[tuple[float, str]]) -> Area:
    """Add margins (top, right, bottom, left) to the subject, in pixels or percent of its side."""
    sides = (subject.height, subject.width, subject.height, subject.width)
    top, right, bottom, left = (
        round(value / 100 * side) if unit == "%" else int(value)
        for (value, unit), side in zip(margins, sides, strict=True)
    )
    return Area(
        subject.top - top,
        subject.left - left,
        top + subject.height + bottom,
        left + subject.width + right,
    )


def place_of(
    subject: Area, canvas: Area, *, scale: float | None, position: Sequence[float] | None
) -> Area:
    """The subject's place, relative to the top left corner of the canvas.

    `scale` is the percentage of the canvas that the subject fills in the tighter direction.
    `position` is the share of the free room that lies left of the subject and above it, in percent.
    Without a position, the subject's centre moves only as far as the canvas requires.
    """
    factor = 1.0
    if scale is not None:
        share = scale / 100
        factor = min(share * canvas.width / subject.width, share * canvas.height / subject.height)
    height = max(1, min(canvas.height, round(subject.height * factor)))
    width = max(1, min(canvas.width, round(subject.width * factor)))
    free_height, free_width = canvas.height - height, canvas.width - width
    if position is not None:
        left, top = (
            round(share / 100 * free)
            for share, free in zip(position, (free_width, free_height), strict=True)
        )
    else:
        top = subject.top - canvas.top + (subject.height - height) // 2
        left = subject.left - canvas.left + (subject.width - width) // 2
        top, left = max(0, min(free_height, top)), max(0, min(free_width, left))
    return Area(top, left, height, width)


def on_canvas(plane: Pixels, canvas: Area) -> Pixels:
    """The part of a plane (H, W) or (H, W, C) that the canvas shows; 0 outside the plane."""
    height, width = plane.shape[:2]
    top, left = max(0, canvas.top), max(0, canvas.left)
    inside = plane[top : min(height, canvas.bottom), left : min(width, canvas.right)]
    if inside.shape[:2] == (canvas.height, canvas.width):
        return inside
    result = np.zeros((canvas.height, canvas.width, *plane.shape[2:]), np.uint8)
    spot = Area(top - canvas.top, left - canvas.left, *inside.shape[:2])
    result[spot.slices] = inside
    return result


def resized_alpha(alpha: Pixels, height: int, width: int) -> Pixels:
    if alpha.shape == (height, width):
        return alpha
    return cv2.convertScaleAbs(_resized_cover(alpha, height, width), alpha=1 / 255.0)


def resized_colours(pixels: Pixels, alpha: Pixels, height: int, width: int) -> Pixels:
    """Resize to RGB with colours weighted by alpha."""
    if alpha.shape == (height, width):
        return pixels[..., :3]
    cover = _resized_cover(alpha, height, width)
    colours = np.empty((height, width, 3), np.uint8)
    for channel in range(3):  # one at a time: 50 MP must fit the memory limit
        weighed = np.multiply(pixels[..., channel], alpha, dtype=np.uint16)
        weighed = resize(weighed, height, width)
        colours[..., channel] = cv2.divide(weighed, cover, scale=255.0, dtype=cv2.CV_8U)
    return colours


def resize(plane: NDArray[Any], height: int, width: int) -> NDArray[Any]:
    """Resize a plane: average when it shrinks, interpolate when it grows."""
    smaller = height * width < plane.shape[0] * plane.shape[1]
    how = cv2.INTER_AREA if smaller else cv2.INTER_LINEAR
    return cv2.resize(plane, (width, height), interpolation=how)


def sampled(
    plane: NDArray[Any],
    rows: slice,
    width: int,
    *,
    scale: tuple[float, float],
    corner: tuple[float, float] = (0.0, 0.0),
) -> NDArray[Any]:
    """Enlarge a reduced plane to full size, and return the given `rows`, `width` pixels wide.

    `scale` is the width and height of a full-size pixel, in pixels of the reduced plane. `corner`
    is the position of column 0 and row 0 on the full-size plane. The result equals a part of the
    whole enlarged plane; beyond the plane, its edges repeat.
    """
    (across, down), (left, top) = scale, corner
    shift_x, shift_y = (left + 0.5) * across - 0.5, (top + rows.start + 0.5) * down - 0.5
    return cv2.warpAffine(
        plane,
        np.array([[across, 0.0, shift_x], [0.0, down, shift_y]]),
        (width, rows.stop - rows.start),
        flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
        borderMode=cv2.BORDER_REPLICATE,
    )


Tile = tuple[slice, slice]


def tiles(height: int, width: int, *, step: int, side: int) -> Iterator[tuple[Tile, Tile]]:
    """Divide a plane into tiles of `side` x `side` blocks; a block is `step` x `step` pixels.

    Yields each tile twice: as slices of blocks, and as slices of pixels. Pixels at the right and
    bottom that fill no block belong to the last one.
    """

    def cut(length: int) -> list[tuple[slice, slice]]:
        count = length // step
        stops = [(at, min(count, at + side)) for at in range(0, count, side)]
        return [
            (slice(at, stop), slice(at * step, length if stop == count else stop * step))
            for at, stop in stops
        ]

    for (tall, high), (wide, across) in product(cut(height), cut(width)):
        yield (tall, wide), (high, across)


def _resized_cover(alpha: Pixels, height: int, width: int) -> NDArray[Any]:
    """The resized alpha times 255, in 16 bits: the scale of a colour multiplied by alpha."""
    return resize(np.multiply(alpha, 255, dtype=np.uint16), height, width)
