"""The arithmetic of matting on arrays: network input, mask to alpha, alpha to picture.

Pictures are (H, W, 3 or 4) uint8, alphas (H, W) uint8, masks (h, w) float32 from 0 to 1.
Backgrounds and shadows are made in bands of rows, and the foreground is composited over them.
"""

from collections.abc import Callable, Sequence

import cv2
import numpy as np
from PIL import Image

from app.tasks.codecs.picture import Floats, Pixels, bands
from app.tasks.segment.framing import Area, resize, resized_alpha, resized_colours, sampled
from app.tasks.segment.masks import normalise as normalise

WHITE = (255, 255, 255, 255)
BOX_LEVEL = 16
"""Alpha (of 255) from which a pixel counts as foreground for the box."""


def network_input(pixels: Pixels, size: int, mean: Sequence[float], std: Sequence[float]) -> Floats:
    """The network's input (1, 3, size, size), made as in U2-Net's training.

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
    """Mean of |2p - 1| over the network's own probabilities."""
    return float(np.abs(2.0 * np.clip(mask, 0.0, 1.0) - 1.0).mean())


def plain_alpha(mask: Floats, width: int, height: int) -> Pixels:
    """The mask resized to the picture; levels are truncated, not rounded, as in save_output() of
    https://github.com/xuebinqin/U-2-Net/blob/master/u2net_test.py"""
    levels = (mask * np.float32(255.0)).astype(np.uint8)
    if width < levels.shape[1] or height < levels.shape[0]:
        # OpenCV would skip pixels. Pillow, which made the official masks, weights all of them.
        return np.array(Image.fromarray(levels).resize((width, height), Image.Resampling.BILINEAR))
    return cv2.resize(levels, (width, height), interpolation=cv2.INTER_LINEAR)


def box_of(alpha: Pixels) -> Area:
    """The foreground's place; all zeros when there is none."""
    foreground = cv2.threshold(alpha, BOX_LEVEL - 1, 255, cv2.THRESH_BINARY)[1]
    left, top, width, height = cv2.boundingRect(foreground)
    return Area(top, left, height, width)


def cutout(pixels: Pixels, alpha: Pixels) -> Pixels:
    """The cut-out, RGBA. Colours are 0 where alpha is 0: the file must not hold the background."""
    height, width = alpha.shape
    result = np.zeros((height, width, 4), np.uint8)
    for rows in bands(height, width):
        colours = cv2.cvtColor(np.ascontiguousarray(pixels[rows][..., :3]), cv2.COLOR_RGB2RGBA)
        cv2.mixChannels([alpha[rows]], [colours], [0, 3])
        cv2.copyTo(colours, alpha[rows], result[rows])
    return result


def over_white(pixels: Pixels) -> Pixels:
    """The picture as the network sees it: RGB, over white where it is transparent."""
    if pixels.shape[2] == 3:
        return pixels
    return stacked(pixels, pixels[..., 3], ground=flat(WHITE, pixels.shape[1]))


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


def reduced(picture: Pixels, height: int, width: int) -> Pixels:
    """Shrink the picture as far as it still covers height x width."""
    tall, wide = picture.shape[:2]
    factor = min(1.0, max(height / tall, width / wide))
    return _resized(picture, max(1, round(tall * factor)), max(1, round(wide * factor)))


def fitted(picture: Pixels, height: int, width: int, *, fit: str, colour: Sequence[int]) -> Pixels:
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
    front = _resized(picture[shown.slices], there.height, there.width)
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
    scale, corner = (size[0] / width, size[1] / height), (canvas.left, canvas.top)
    return lambda rows: sampled(ground, rows, canvas.width, scale=scale, corner=corner)


def _filled(sums: Floats, weight: Floats, sigma: float) -> Floats:
    """The blurred `sums` (colours times their weight) divided by the blurred `weight`.

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


def _resized(picture: Pixels, height: int, width: int) -> Pixels:
    if picture.shape[:2] == (height, width):
        return picture
    if picture.shape[2] == 3:
        return resize(picture, height, width)
    cover = np.ascontiguousarray(picture[..., 3])
    colours = resized_colours(picture, cover, height, width)
    return np.dstack((colours, resized_alpha(cover, height, width)))


def _centred(height: int, width: int, inner_height: float, inner_width: float) -> Area:
    """The middle of height x width, at least a pixel."""
    rows = max(1, min(height, round(inner_height)))
    columns = max(1, min(width, round(inner_width)))
    return Area((height - rows) // 2, (width - columns) // 2, rows, columns)


def over(front: Pixels, alpha: Pixels, back: Pixels) -> Pixels:
    """Composite `front` (H, W, 3 or 4) with `alpha` over `back`, which sets the channels of the
    result."""
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
    small = np.pad(small.astype(np.float32), border)
    soft = cv2.GaussianBlur(small, None, max(sigma / step, 0.1)) * np.float32(opacity)
    patch = (soft + 0.5).astype(np.uint8)
    scale = size[0] / place.width, size[1] / place.height
    # The patch begins `border` of its own pixels before the subject; its edges are 0.
    left = border / scale[0] - place.left - FALLS[0] * longer
    top = border / scale[1] - place.top - FALLS[1] * longer
    return lambda rows: sampled(patch, rows, width, scale=scale, corner=(left, top))
