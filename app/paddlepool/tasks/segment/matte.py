"""The arithmetic of matting on arrays: network input, mask to alpha, alpha to picture.

Pictures are (H, W, 3 or 4) uint8, alphas (H, W) uint8, masks (h, w) float32 from 0 to 1. The result
is a canvas, which may extend beyond the picture on any side; the subject may be moved on it.
Backgrounds and shadows are made in bands of rows, and the foreground is composited over them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from paddlepool.tasks.codecs.picture import Floats, Pixels, bands
from paddlepool.tasks.segment.masks import normalise as normalise


@dataclass(frozen=True, slots=True)
class Area:
    """A rectangle of a plane, in pixels; `top` and `left` may be negative."""

    top: int
    left: int
    height: int
    width: int

    @property
    def slices(self) -> tuple[slice, slice]:
        return slice(self.top, self.top + self.height), slice(self.left, self.left + self.width)


def canvas_of(subject: Area, margins: Sequence[tuple[float, str]]) -> Area:
    """Return the subject's area with margins (top, right, bottom, left) in pixels or percent.

    A percentage at the top or bottom is of the subject's height, at the left or right of its width.
    """
    sides = (subject.height, subject.width) * 2
    top, right, bottom, left = (
        round(value / 100 * side) if unit == "%" else int(value)
        for (value, unit), side in zip(margins, sides, strict=True)
    )
    height, width = top + subject.height + bottom, left + subject.width + right
    return Area(subject.top - top, subject.left - left, height, width)


def place_of(
    subject: Area, canvas: Area, *, scale: float | None, position: Sequence[float] | None
) -> Area:
    """Return the subject's area, relative to the top left corner of the canvas.

    `scale` is how much of the canvas the subject fills, in percent, in the direction in which it
    fills more. `position` has the parts of the free room to the left of the subject and above it,
    in percent. Without a position, the subject's centre moves only as far as the canvas requires.
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
    """Return the part of a plane (H, W) or (H, W, C) that the canvas shows; 0 outside the plane."""
    rows, columns = canvas.slices
    top, left = max(0, rows.start), max(0, columns.start)
    inside = plane[top : rows.stop, left : columns.stop]
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
    """Resize an RGB or RGBA picture to RGB, with colours weighted by `alpha` (H, W)."""
    if alpha.shape == (height, width):
        return pixels[..., :3]
    cover = _resized_cover(alpha, height, width)
    colours = np.empty((height, width, 3), np.uint8)
    for channel in range(3):  # one at a time: the largest picture must fit the memory limit
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

    Yields each tile as slices (rows, columns) of blocks, and as slices of pixels. Pixels at the
    right and bottom that fill no block belong to the last tile.
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
    """Return the resized alpha times 255 in 16 bits, which is the range of a colour times alpha."""
    return resize(np.multiply(alpha, 255, dtype=np.uint16), height, width)


WHITE = (255, 255, 255, 255)
BOX_LEVEL = 16
"""Alpha (of 255) from which a pixel counts as foreground for the box."""


def network_input(pixels: Pixels, size: int, mean: Sequence[float], std: Sequence[float]) -> Floats:
    """Return the network's input (1, 3, size, size), made as in U2-Net's training.

    The picture is scaled bilinearly and divided by its own maximum, as in RescaleT and
    ToTensorLab(flag=0) of https://github.com/xuebinqin/U-2-Net/blob/master/data_loader.py.
    Anti-aliasing while scaling would change the masks by several percent.
    """
    small = cv2.resize(pixels, (size, size), interpolation=cv2.INTER_LINEAR)
    largest = max(1.0, float(small.max()))
    tensor = np.empty((1, 3, size, size), np.float32)
    for channel, (middle, spread) in enumerate(zip(mean, std, strict=True)):
        # One multiplication and one subtraction per value, on contiguous planes.
        np.multiply(small[..., channel], np.float32(1 / (largest * spread)), out=tensor[0, channel])
        tensor[0, channel] -= np.float32(middle / spread)
    return tensor


def confidence(mask: Floats) -> float:
    """Return the mean of |2p - 1| over the values p of a mask, from 0 to 1."""
    return float(np.abs(2.0 * np.clip(mask, 0.0, 1.0) - 1.0).mean())


def plain_alpha(mask: Floats, width: int, height: int, *, nearest: bool = False) -> Pixels:
    """Resize the mask to the picture; levels are truncated, as in save_output() of U²-Net.

    See https://github.com/xuebinqin/U-2-Net/blob/master/u2net_test.py. With `nearest`, no value
    between those of the mask appears.
    """
    levels = (mask * np.float32(255.0)).astype(np.uint8)
    if nearest:
        return cv2.resize(levels, (width, height), interpolation=cv2.INTER_NEAREST)
    if width < levels.shape[1] or height < levels.shape[0]:
        # OpenCV would skip pixels. Pillow, which made the official masks, weights all of them.
        return np.array(Image.fromarray(levels).resize((width, height), Image.Resampling.BILINEAR))
    return cv2.resize(levels, (width, height), interpolation=cv2.INTER_LINEAR)


def box_of(alpha: Pixels) -> Area:
    """Return the box around all alphas from BOX_LEVEL on; all zeros if there are none."""
    foreground = cv2.threshold(alpha, BOX_LEVEL - 1, 255, cv2.THRESH_BINARY)[1]
    left, top, width, height = cv2.boundingRect(foreground)
    return Area(top, left, height, width)


def cutout(pixels: Pixels, alpha: Pixels) -> Pixels:
    """Return the picture as RGBA with `alpha` (H, W) as its alpha.

    Colours are 0 where alpha is 0, because the file must not contain the background.
    """
    result = np.zeros((*alpha.shape, 4), np.uint8)
    write_cutout(pixels, alpha, result)
    return result


def write_cutout(pixels: Pixels, alpha: Pixels, result: Pixels) -> None:
    """Write the cutout() into a `result` (H, W, 4) of zeros."""
    for rows in bands(*alpha.shape):
        if not cv2.countNonZero(alpha[rows]):
            continue  # the zeros take no memory
        colours = cv2.cvtColor(np.ascontiguousarray(pixels[rows][..., :3]), cv2.COLOR_RGB2RGBA)
        cv2.mixChannels([alpha[rows]], [colours], [0, 3])
        cv2.copyTo(colours, alpha[rows], result[rows])


Bands = Callable[[slice], Pixels]
"""A function that takes rows of the canvas and returns their pixels (RGB, RGBA or alpha alone)."""

SMALL_SIGMA = 4.0
"""A wide blur is computed on a reduced picture, where its sigma is this many pixels."""
SUBJECT_COUNTS = 1e-4
"""Weight of the subject's colours in the blur. Not 0, because a picture may be all subject."""
DOUBT = 0.02
"""Weight of the background's colour from farther away, where little background is near."""


def flat(colour: Sequence[int], width: int) -> Bands:
    """Return a background of one colour (red, green, blue, alpha): RGB if the colour is opaque."""
    paint = np.array(colour if colour[3] < 255 else colour[:3], np.uint8)
    return lambda rows: np.tile(paint, (rows.stop - rows.start, width, 1))


def reduced(picture: Pixels, height: int, width: int) -> Pixels:
    """Shrink the picture, with its aspect ratio, as far as it still covers height x width.

    A picture that does not cover it is returned as it is.
    """
    tall, wide = picture.shape[:2]
    factor = min(1.0, max(height / tall, width / wide))
    return resized(picture, max(1, round(tall * factor)), max(1, round(wide * factor)))


def fitted(picture: Pixels, height: int, width: int, *, fit: str, colour: Sequence[int]) -> Bands:
    """Return a background of height x width with the undistorted picture in the centre.

    `cover` fills the area and cuts off the excess; `contain` shows the whole picture on `colour`.
    The result is RGB if `colour` is opaque, or if an opaque picture fills the area; else RGBA.
    """
    tall, wide = picture.shape[:2]
    factor = (max if fit == "cover" else min)(height / tall, width / wide)
    shown = _centred(tall, wide, height / factor, width / factor)
    there = _centred(height, width, tall * factor, wide * factor)
    front = resized(picture[shown.slices], there.height, there.width)
    if front.shape == (height, width, 3):
        return front.__getitem__
    paint = flat(colour, width)

    def ground(rows: slice) -> Pixels:
        result = paint(rows)
        top, bottom = max(rows.start, there.top), min(rows.stop, there.top + there.height)
        if top < bottom:
            part = front[top - there.top : bottom - there.top]
            cover = part[..., 3] if part.shape[2] == 4 else np.full(part.shape[:2], 255, np.uint8)
            spot = Area(top - rows.start, there.left, bottom - top, there.width).slices
            result[spot] = over(part, cover, result[spot])
        return result

    return ground


def blurred(pixels: Pixels, alpha: Pixels, *, percent: float, canvas: Area) -> Bands:
    """Return the picture's own background, blurred, for the canvas.

    The subject is removed first, and the gap is filled from its surroundings. Beyond the picture,
    the background's edge repeats. `percent` is the blur's sigma, in percent of the longer side.
    """
    height, width = alpha.shape
    sigma = percent / 100 * max(height, width)
    step = max(1.0, sigma / SMALL_SIGMA)
    size = (max(1, round(width / step)), max(1, round(height / step)))

    def small(plane: Pixels) -> Floats:
        return cv2.resize(plane, size, interpolation=cv2.INTER_AREA).astype(np.float32)

    rest = np.uint8(255) - alpha
    weight = small(rest) / np.float32(255.0) + np.float32(SUBJECT_COUNTS)
    sums = [  # one colour at a time: the largest picture must fit the memory limit
        small(cv2.multiply(plane, rest, scale=1 / 255.0))
        + np.float32(SUBJECT_COUNTS) * small(plane)
        for plane in (np.ascontiguousarray(pixels[..., channel]) for channel in range(3))
    ]
    filled = _filled(np.dstack(sums), weight, sigma / step)
    ground = (np.clip(filled, 0.0, 255.0) + 0.5).astype(np.uint8)
    scale, corner = (size[0] / width, size[1] / height), (canvas.left, canvas.top)
    return lambda rows: sampled(ground, rows, canvas.width, scale=scale, corner=corner)


def _filled(sums: Floats, weight: Floats, sigma: float) -> Floats:
    """Return the blurred `sums` (colours times their weight) divided by the blurred `weight`.

    Where the weight is close to 0, the colour comes from a smaller picture, blurred the same way.
    """
    height, width = weight.shape
    if max(height, width) <= 4:
        far = (sums.sum(axis=(0, 1)) / weight.sum()).reshape(1, 1, 3)
    else:
        size = (-(-width // 4), -(-height // 4))
        less = cv2.resize(sums, size, interpolation=cv2.INTER_AREA).reshape(*size[::-1], 3)
        light = cv2.resize(weight, size, interpolation=cv2.INTER_AREA).reshape(size[::-1])
        far = _filled(less, light, SMALL_SIGMA / 2)
    far = cv2.resize(far, (width, height), interpolation=cv2.INTER_LINEAR)
    near = cv2.GaussianBlur(sums, None, sigma).reshape(height, width, 3)
    share = cv2.GaussianBlur(weight, None, sigma)
    few = np.float32(DOUBT)
    return (near + few * far.reshape(height, width, 3)) / (share + few)[..., None]


def resized(picture: Pixels, height: int, width: int) -> Pixels:
    """Resize a picture, RGB or RGBA; colours are weighted by alpha."""
    if picture.shape[:2] == (height, width):
        return picture
    if picture.shape[2] == 3:
        return resize(picture, height, width)
    cover = np.ascontiguousarray(picture[..., 3])
    colours = resized_colours(picture, cover, height, width)
    return np.dstack((colours, resized_alpha(cover, height, width)))


def _centred(height: int, width: int, inner_height: float, inner_width: float) -> Area:
    """Return an area of the inner size in the middle of height x width, cut to what fits."""
    rows = max(1, min(height, round(inner_height)))
    columns = max(1, min(width, round(inner_width)))
    return Area((height - rows) // 2, (width - columns) // 2, rows, columns)


def over(front: Pixels, alpha: Pixels, back: Pixels) -> Pixels:
    """Composite `front` (RGB or RGBA) with `alpha` over `back`; keep the channels of `back`.

    The alpha of `front` itself is ignored.
    """
    colours = np.ascontiguousarray(front[..., :3])
    if back.shape[2] == 3:
        weight, under = alpha.astype(np.float32), np.ascontiguousarray(back)
        return cv2.blendLinear(colours, under, weight, np.float32(255.0) - weight)
    cover = alpha[..., None].astype(np.float32) / 255.0
    rest = (1.0 - cover) * (back[..., 3:].astype(np.float32) / 255.0)
    total = cover + rest
    result = np.empty(back.shape, np.uint8)
    result[..., :3] = np.rint((colours * cover + back[..., :3] * rest) / np.maximum(total, 1e-6))
    result[..., 3] = np.rint(total[..., 0] * 255.0)
    return result


def stacked(pixels: Pixels, alpha: Pixels, *, ground: Bands, shade: Bands | None = None) -> Pixels:
    """Composite `pixels` over their shadow, and both over the background, in bands of rows.

    `alpha` (H, W) is that of `pixels`, `ground` the background, `shade` the alpha of the shadow.
    The result has the channels of the background.
    """
    height, width = alpha.shape
    channels = ground(slice(0, 1)).shape[2]
    result = np.empty((height, width, channels), np.uint8)
    for rows in bands(height, width):
        back = ground(rows)
        if shade is not None:
            back = over(np.zeros((*back.shape[:2], 3), np.uint8), shade(rows), back)
        result[rows] = over(pixels[rows], alpha[rows], back)
    return result


BLUR = 0.025
"""Sigma of the shadow's blur, as a fraction of the subject's longer side."""
FALLS = (0.015, 0.03)
"""Offset of the shadow (right, down), as fractions of the subject's longer side."""
REACH = 3.0
"""The blur's reach in standard deviations; beyond it less than half a level is left."""


def drop_shadow(alpha: Pixels, place: Area, *, opacity: float, width: int) -> Bands:
    """Return the alpha of the shadow of the subject at `place`, for rows that are `width` wide.

    `alpha` (H, W) is the alpha of the subject on the canvas; `opacity` is from 0 to 1.
    """
    longer = max(place.height, place.width)
    sigma = BLUR * longer
    step = max(1.0, sigma / SMALL_SIGMA)
    size = (max(1, round(place.width / step)), max(1, round(place.height / step)))
    small = cv2.resize(alpha[place.slices], size, interpolation=cv2.INTER_AREA)
    border = round(REACH * sigma / step) + 2
    small = np.pad(small.astype(np.float32), border)
    soft = cv2.GaussianBlur(small, None, max(sigma / step, 0.1)) * np.float32(opacity)
    patch = (soft + 0.5).astype(np.uint8)
    scale = size[0] / place.width, size[1] / place.height
    # The patch begins `border` of its own pixels before the subject; its edges are 0.
    left = border / scale[0] - place.left - FALLS[0] * longer
    top = border / scale[1] - place.top - FALLS[1] * longer
    return lambda rows: sampled(patch, rows, width, scale=scale, corner=(left, top))
