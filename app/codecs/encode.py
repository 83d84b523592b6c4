"""Arrays we made to PNG, WebP or JPEG, without metadata. Runs only in a codec process."""

from __future__ import annotations

import io

import cv2
import numpy as np
from PIL import Image

from app.codecs.limits import WEBP_PIXELS, WEBP_SIDE, PictureLimits
from app.codecs.picture import Pixels
from app.contracts.errors import BackendError, OutputTooLarge

WEBP_QUALITY = 90
JPEG_QUALITY = 90
LARGE_PIXELS = 4_000_000

# Run-length matching only: a quarter of the time of zlib level 6 for the same size on cut-outs.
_PNG = (
    cv2.IMWRITE_PNG_COMPRESSION, 1,
    cv2.IMWRITE_PNG_STRATEGY, cv2.IMWRITE_PNG_STRATEGY_RLE,
    cv2.IMWRITE_PNG_FILTER, cv2.IMWRITE_PNG_FILTER_UP,
)  # fmt: skip


def check_output(
    width: int, height: int, *, format: str, grey: bool, limits: PictureLimits
) -> None:
    """Raises OutputTooLarge, before the network has run, for what `encode` could not hold."""
    pixels = width * height
    most = {"png": limits.png_pixels, "webp": WEBP_PIXELS}.get(format)
    if most is not None and not grey and pixels > most:
        raise OutputTooLarge(
            f"a {format} in colour of {width} x {height} = {pixels:,} pixels is over the limit of "
            f"{most:,}; use {'format=webp, ' if pixels <= WEBP_PIXELS else ''}"
            "output=composite with format=jpg, output=mask or size=preview",
            limit=most,
            received=pixels,
        )
    if format == "webp" and max(width, height) > WEBP_SIDE:
        raise OutputTooLarge(
            f"WebP holds {WEBP_SIDE:,} pixels a side, the result is {width} x {height}; "
            "use format=png, output=composite with format=jpg, or size=preview",
            limit=WEBP_SIDE,
            received=max(width, height),
        )


def encode(pixels: Pixels, *, format: str) -> Pixels:
    """One-dimensional file bytes of a grey (H, W), RGB (H, W, 3) or RGBA (H, W, 4) array."""
    if format == "webp":
        return _webp(pixels)
    if format == "png":
        return _opencv(".png", pixels, _PNG)
    if format == "jpg":
        return _opencv(".jpg", pixels, (cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY))
    raise ValueError(f"this is a bug: unknown format {format!r}")


def _webp(pixels: Pixels) -> Pixels:
    file = io.BytesIO()
    # The default, method 4, takes four times as long as 1 and eight times as long as 0, for a
    # file a fifth or two fifths smaller.
    method = 0 if pixels.shape[0] * pixels.shape[1] > LARGE_PIXELS else 1
    try:
        Image.fromarray(pixels).save(file, "WEBP", quality=WEBP_QUALITY, method=method)
    except ValueError as error:
        if "encoding error 1" in str(error):  # so Pillow passes on that libwebp had no memory
            raise MemoryError from None
        raise
    return np.frombuffer(file.getbuffer(), np.uint8)


def _opencv(extension: str, pixels: Pixels, options: tuple[int, ...]) -> Pixels:
    if pixels.ndim == 3:
        order = cv2.COLOR_RGBA2BGRA if pixels.shape[2] == 4 else cv2.COLOR_RGB2BGR
        pixels = cv2.cvtColor(pixels, order)
    done, file = cv2.imencode(extension, pixels, options)
    if not done:
        raise BackendError(f"OpenCV could not encode {extension} of shape {pixels.shape}")
    encoded: Pixels = file.reshape(-1)
    return encoded
