"""The operations before the model: a function for each, and the table OPERATIONS with all of them.

A function takes a picture (height x width x 3) and the parameters of its operation, and returns the
picture for the next operation. The picture is uint8 until it is normalised, then float32. The
parameters are those of `paddlepool.tasks.transforms.config`, which has their defaults and checks. A
function that resizes raises ResolutionTooHigh if its result would have more than MOST_PIXELS.

The arithmetic is that of PaddleX 3.7.2 (`paddlex/inference/models`), with its roundings.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from paddlepool.contracts.errors import ImageUnreadable, ResolutionTooHigh
from paddlepool.tasks.codecs.picture import Floats

Values = NDArray[Any]
"""A picture of uint8 or float32."""

MOST_PIXELS = 16_000_000
"""Maximum pixels of a resized picture: those of 4,000 x 4,000, PaddleX's limit for detectors."""
MOST_PAGE_SIDE = 4000
STEP = 32
"""The sides of a detector's input are multiples of this."""
SMALL_PAGE = 64
"""A page is padded if the sum of its height and width is below this."""
MOST_LINE_WIDTH = 3200

_CV2 = {
    "NEAREST": cv2.INTER_NEAREST,
    "LINEAR": cv2.INTER_LINEAR,
    "BILINEAR": cv2.INTER_LINEAR,
    "BICUBIC": cv2.INTER_CUBIC,
    "AREA": cv2.INTER_AREA,
    "LANCZOS4": cv2.INTER_LANCZOS4,
}
_PIL = {
    "NEAREST": Image.Resampling.NEAREST,
    "BILINEAR": Image.Resampling.BILINEAR,
    "BICUBIC": Image.Resampling.BICUBIC,
    "BOX": Image.Resampling.BOX,
    "LANCZOS4": Image.Resampling.LANCZOS,
}


def decode_image(picture: Values, *, img_mode: Literal["BGR", "RGB"], **_: Any) -> Values:
    """Return an RGB picture with its channels in the order `img_mode`."""
    return picture if img_mode == "RGB" else cv2.cvtColor(picture, cv2.COLOR_RGB2BGR)


def read_image(picture: Values, *, format: Literal["BGR", "RGB"]) -> Values:
    return decode_image(picture, img_mode=format)


def resize_image(
    picture: Values,
    *,
    resize_short: int | None,
    size: Sequence[int] | None,
    backend: str,
    interpolation: str,
) -> Values:
    """Resize so that the shorter side is `resize_short`, or to `size` (width, height) without it.

    `backend` is `cv2` or `pil`, the library that resizes.
    """
    if resize_short:
        height, width = picture.shape[:2]
        scale = resize_short / min(height, width)
        size = (round(width * scale), round(height * scale))
    assert size  # noqa: S101  config checks it
    return _resized(picture, *size, backend=backend, interpolation=interpolation)


def resize(
    picture: Values,
    *,
    target_size: Sequence[int] | int,
    keep_ratio: bool,
    size_divisor: int | None,
    interp: str,
) -> Values:
    """Resize to `target_size` (width, height), or to at most this with `keep_ratio`.

    With `keep_ratio`, the larger number of `target_size` limits the picture's longer side, and the
    smaller one its shorter side. Then both sides are rounded up to multiples of `size_divisor`, if
    it is set. If `target_size` is -1, the picture is returned as it is.
    """
    if isinstance(target_size, int):  # -1: the picture's own size
        return picture
    width, height = target_size
    if keep_ratio:
        sides = picture.shape[1], picture.shape[0]
        scale = min(max(target_size) / max(sides), min(target_size) / min(sides))
        width, height = (max(1, round(side * scale)) for side in sides)
    if size_divisor:
        width, height = (math.ceil(side / size_divisor) * size_divisor for side in (width, height))
    return _resized(picture, width, height, interpolation=interp)


def crop_image(picture: Values, *, size: Sequence[int]) -> Values:
    """Return a rectangle in the centre, of `size` (width, height).

    Raises ImageUnreadable if a side of the picture is shorter.
    """
    height, width = picture.shape[:2]
    return _cropped(picture, (width - size[0]) // 2, (height - size[1]) // 2, *size)


def center_crop(picture: Values, *, target_size: int, do_round: bool) -> Values:
    """Return a square in the centre with sides of `target_size` pixels.

    Raises ImageUnreadable if a side of the picture is shorter.
    """
    left, top = (
        round((side - target_size) / 2) if do_round else (side - target_size) // 2
        for side in (picture.shape[1], picture.shape[0])
    )
    return _cropped(picture, left, top, target_size, target_size)


def normalize_image(
    picture: Values, *, mean: Sequence[float], std: Sequence[float], scale: float, **_: Any
) -> Floats:
    """Return `(picture * scale - mean) / std`, for each channel."""
    # The planes are computed one by one and stay in their place in memory, so that to_chw() has
    # nothing to copy.
    planes = np.empty((picture.shape[2], *picture.shape[:2]), np.float32)
    for channel, plane in enumerate(planes):
        np.multiply(picture[..., channel], np.float32(scale / std[channel]), out=plane)
        plane += np.float32(-mean[channel] / std[channel])
    return planes.transpose(1, 2, 0)


def normalize(picture: Values, *, mean: Sequence[float], std: Sequence[float]) -> Floats:
    return normalize_image(picture, mean=mean, std=std, scale=1 / 255)


def to_chw(picture: Values) -> Values:
    """Return a picture (height, width, channels) as (channels, height, width)."""
    return picture.transpose(2, 0, 1)


def det_resize_for_test(
    picture: Values,
    *,
    limit_side_len: int | None,
    limit_type: Literal["min", "max", "resize_long"] | None,
    image_shape: Sequence[int] | None,
    keep_ratio: bool,
    **_: Any,
) -> Values:
    """Resize a page to `image_shape` (height, width), or by the limit `limit_side_len` without it.

    With `keep_ratio`, only the height is that of `image_shape`; the width keeps the page's
    proportions, rounded up to a multiple of 32.

    The meaning of the limit depends on `limit_type`. `min` enlarges a page whose shorter side is
    below it, `max` shrinks a page whose longer side is above it, and `resize_long` makes the longer
    side equal to it. Both sides are rounded to multiples of 32, and are at most 4,000.

    A page whose height and width are together below 64 is first padded with black, on the right and
    at the bottom, to at least 32 x 32.
    """
    if sum(picture.shape[:2]) < SMALL_PAGE:
        small = picture
        height, width = (max(STEP, side) for side in small.shape[:2])
        picture = np.zeros((height, width, small.shape[2]), small.dtype)
        picture[: small.shape[0], : small.shape[1]] = small
    height, width = picture.shape[:2]
    if image_shape:
        tall, wide = image_shape
        if keep_ratio:
            wide = math.ceil(width * tall / height / STEP) * STEP
        return _resized(picture, wide, tall)
    assert limit_side_len  # noqa: S101  config sets it
    tall, wide = limited_sides(height, width, limit_side_len, limit_type)
    return _resized(picture, wide, tall)


def limited_sides(
    height: int, width: int, limit: int, limit_type: Literal["min", "max", "resize_long"] | None
) -> tuple[int, int]:
    """Return the height and width to which det_resize_for_test() resizes a page by a limit."""
    edge = min(height, width) if limit_type == "min" else max(height, width)
    ratio = limit / edge
    if (limit_type == "max" and ratio > 1) or (limit_type == "min" and ratio < 1):
        ratio = 1.0
    tall, wide = int(height * ratio), int(width * ratio)
    if (longest := max(tall, wide)) > MOST_PAGE_SIDE:
        ratio = MOST_PAGE_SIDE / longest
        tall, wide = int(tall * ratio), int(wide * ratio)
    return max(round(tall / STEP) * STEP, STEP), max(round(wide / STEP) * STEP, STEP)


def rec_resize_img(picture: Values, *, image_shape: Sequence[int]) -> Floats:
    """Return a line of text as (channels, height, width), with values from -1 to 1.

    The result has the height of `image_shape` (channels, height, width) and at least its width: to
    the right of a shorter line are zeros. A line that would be wider than 3,200 pixels is squeezed
    to that width.
    """
    _, tall, least = image_shape
    height, width = picture.shape[:2]
    ratio = width / height
    wide = int(tall * max(least / tall, ratio))
    if wide > MOST_LINE_WIDTH:
        wide = shown = MOST_LINE_WIDTH
    else:
        shown = min(wide, math.ceil(tall * ratio))
    line = cv2.resize(picture, (shown, tall)).astype(np.float32)
    result = np.zeros((picture.shape[2], tall, wide), np.float32)
    part = result[:, :, :shown]
    np.divide(line.transpose(2, 0, 1), np.float32(255), out=part)
    part -= np.float32(0.5)
    part /= np.float32(0.5)
    return result


OPERATIONS: dict[str, Callable[..., Values]] = {
    "DecodeImage": decode_image,
    "ReadImage": read_image,
    "ResizeImage": resize_image,
    "Resize": resize,
    "DetResizeForTest": det_resize_for_test,
    "CropImage": crop_image,
    "CenterCrop": center_crop,
    "RecResizeImg": rec_resize_img,
    "OCRReisizeNormImg": rec_resize_img,
    "NormalizeImage": normalize_image,
    "Normalize": normalize,
    "ToCHWImage": to_chw,
    "Permute": to_chw,
}
"""The function of each operation in `paddlepool.tasks.transforms.config.OPERATIONS`."""


def _resized(
    picture: Values, width: int, height: int, *, backend: str = "cv2", interpolation: str = "LINEAR"
) -> Values:
    if (height, width) == picture.shape[:2]:
        return picture
    if width * height > MOST_PIXELS:
        raise ResolutionTooHigh(
            f"the model resizes the picture of {picture.shape[1]} x {picture.shape[0]} pixels to "
            f"{width} x {height} = {width * height:,} pixels; the limit is {MOST_PIXELS:,}",
            limit=MOST_PIXELS,
            received=width * height,
        )
    if backend == "pil":
        return np.asarray(Image.fromarray(picture).resize((width, height), _PIL[interpolation]))
    return cv2.resize(picture, (width, height), interpolation=_CV2[interpolation])


def _cropped(picture: Values, left: int, top: int, width: int, height: int) -> Values:
    if width > picture.shape[1] or height > picture.shape[0]:
        raise ImageUnreadable(
            f"the model needs at least {width} x {height} pixels; the picture has "
            f"{picture.shape[1]} x {picture.shape[0]}",
            limit=f"at least {width} x {height}",
            received=f"{picture.shape[1]} x {picture.shape[0]}",
        )
    return picture[top : top + height, left : left + width]
