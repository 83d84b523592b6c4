"""Backgrounds and shadows, made in bands of rows, and the foreground composited over them."""

from collections.abc import Callable, Sequence

import cv2
import numpy as np

from app.tasks.codecs.picture import Floats, Pixels, bands
from app.tasks.segment.framing import Area, resize, resized_alpha, resized_colours, sampled

Bands = Callable[[slice], Pixels]
"""A function that takes rows of the canvas and returns their pixels, RGB or RGBA."""

SMALL_SIGMA = 4.0
"""A wide blur is computed on a reduced picture, on which the blur's standard deviation is this many
pixels."""
SUBJECT_COUNTS = 1e-4
"""Weight of the subject's colours in the blur: a picture may consist of the subject alone."""
DOUBT = 0.02
"""Weight of the background's colour from farther away, where little background is near."""


def flat(colour: Sequence[int], width: int) -> Bands:
    """A background of one colour (red, green, blue, alpha); RGB if the colour is opaque."""
    paint = np.array(colour if colour[3] < 255 else colour[:3], np.uint8)
    return lambda rows: np.tile(paint, (rows.stop - rows.start, width, 1))


def reduced(picture: Pixels, *, height: int, width: int) -> Pixels:
    factor = max(height / picture.shape[0], width / picture.shape[1])
    if factor >= 1.0:
        return picture
    rows, columns = round(picture.shape[0] * factor), round(picture.shape[1] * factor)
    return _resized(picture, height=max(1, rows), width=max(1, columns))


def fitted(picture: Pixels, *, height: int, width: int, fit: str, colour: Sequence[int]) -> Pixels:
    """Centre the picture in height x width and keep its aspect ratio.

    `cover` fills the area and cuts off the excess; `contain` shows the whole picture on `colour`.
    The result is RGB, or RGBA if the colour is translucent.
    """
    tall, wide = picture.shape[:2]
    if fit == "cover":
        factor = max(height / tall, width / wide)
        shown = _centred(tall, wide, height / factor, width / factor)
        there = Area(0, 0, height, width)
    else:
        factor = min(height / tall, width / wide)
        shown = Area(0, 0, tall, wide)
        there = _centred(height, width, tall * factor, wide * factor)
    front = _resized(picture[shown.slices], height=there.height, width=there.width)
    if front.shape == (height, width, 3):
        return front
    ground = np.tile(flat(colour, width)(slice(0, 1)), (height, 1, 1))
    cover = front[..., 3] if front.shape[2] == 4 else np.full(front.shape[:2], 255, np.uint8)
    spot = ground[there.slices]
    for rows in bands(there.height, there.width):
        spot[rows] = over(front[rows], cover[rows], spot[rows])
    return ground


def blurred(pixels: Pixels, alpha: Pixels, *, percent: float, canvas: Area) -> Bands:
    """The picture's own background, blurred, for the canvas; beyond the picture its edge repeats.

    The subject is removed first, and the gap is filled from its surroundings.
    """
    height, width = alpha.shape
    sigma = percent / 100 * max(height, width)
    step = max(1.0, sigma / SMALL_SIGMA)
    size = (max(1, round(width / step)), max(1, round(height / step)))

    def small(plane: Pixels) -> Floats:
        return cv2.resize(plane, size, interpolation=cv2.INTER_AREA).astype(np.float32)

    rest = np.uint8(255) - alpha
    weight = small(rest) / np.float32(255.0) + np.float32(SUBJECT_COUNTS)
    sums = [  # one colour at a time: 50 MP must fit the memory limit of a codec process
        small(cv2.multiply(plane, rest, scale=1 / 255.0))
        + np.float32(SUBJECT_COUNTS) * small(plane)
        for plane in (np.ascontiguousarray(pixels[..., channel]) for channel in range(3))
    ]
    filled = _filled(np.dstack(sums), weight, sigma / step)
    ground = (np.clip(filled, 0.0, 255.0) + 0.5).astype(np.uint8)
    scale = size[0] / width, size[1] / height
    return lambda rows: sampled(
        ground, rows, canvas.width, scale=scale, left=canvas.left, top=canvas.top
    )


def _filled(sums: Floats, weight: Floats, sigma: float) -> Floats:
    """The blurred `sums` (colours times their weight) divided by the blurred `weight`.

    Where the weight is close to 0, the colour comes from a smaller picture, blurred the same way.
    """
    height, width = weight.shape
    if max(height, width) <= 4:
        far = (sums.sum(axis=(0, 1)) / weight.sum()).reshape(1, 1, 3)
    else:
        size = (-(-width // 4), -(-height // 4))
        less = [
            cv2.resize(each, size, interpolation=cv2.INTER_AREA).reshape(size[1], size[0], -1)
            for each in (sums, weight)
        ]
        far = _filled(less[0], less[1][..., 0], SMALL_SIGMA / 2)
    far = cv2.resize(far, (width, height), interpolation=cv2.INTER_LINEAR)
    near = cv2.GaussianBlur(sums, None, sigma).reshape(height, width, 3)
    share = cv2.GaussianBlur(weight, None, sigma)
    few = np.float32(DOUBT)
    return (near + few * far.reshape(height, width, 3)) / (share + few)[..., None]


def _resized(picture: Pixels, *, height: int, width: int) -> Pixels:
    if picture.shape[:2] == (height, width):
        return picture
    if picture.shape[2] == 3:
        return resize(picture, height, width)
    cover = np.ascontiguousarray(picture[..., 3])
    colours = resized_colours(picture, cover, height, width)
    return np.dstack((colours, resized_alpha(cover, height, width)))


def _centred(height: int, width: int, inner_height: float, inner_width: float) -> Area:
    """The middle of height x width, at least a pixel."""
    rows, columns = min(height, round(inner_height)), min(width, round(inner_width))
    rows, columns = max(1, rows), max(1, columns)
    return Area((height - rows) // 2, (width - columns) // 2, rows, columns)


def over(front: Pixels, alpha: Pixels, back: Pixels) -> Pixels:
    """Composite `front` (H, W, 3 or 4) with `alpha` over `back`, which sets the channels of the
    result."""
    colours = np.ascontiguousarray(front[..., :3])
    if back.shape[2] == 3:
        weight = alpha.astype(np.float32)
        under = np.ascontiguousarray(back)
        return cv2.blendLinear(colours, under, weight, np.float32(255.0) - weight)
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
    ground: Bands,
    shade: Bands | None = None,
) -> Pixels:
    """Composite the foreground over its shadow over the background, in bands of rows."""
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
FALLS = (0.015, 0.03)
"""The shadow's standard deviation, and its offset right and down: fractions of the subject's longer
side."""
REACH = 3.0
"""The blur's reach in standard deviations; beyond it less than half a level is left."""


def drop_shadow(alpha: Pixels, place: Area, *, opacity: float, width: int) -> Bands:
    """The alpha of the shadow of the subject at `place`, in bands of rows that are `width` wide."""
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
    # The patch begins `border` of its own pixels before the subject; its edges are 0.
    left = border / across - place.left - FALLS[0] * longer
    top = border / down - place.top - FALLS[1] * longer
    return lambda rows: sampled(patch, rows, width, scale=(across, down), left=left, top=top)
