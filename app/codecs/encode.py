"""Arrays we made to PNG, WebP or JPEG, without metadata. Runs only in a codec process."""

from __future__ import annotations

import io

import cv2
import numpy as np
from PIL import Image

from app.codecs.limits import WEBP_PIXELS, WEBP_SIDE, PictureLimits
from app.codecs.picture import Pixels
from app.codecs.png import encode_png
from app.contracts.errors import BackendError, OutputTooLarge

WEBP_QUALITY = 90
JPEG_QUALITY = 90
WEBP_METHOD = 0
"""Of 0 to 6. 1 takes over twice as long for files an eighth to a third smaller: most of that on
the alpha, which is kept without loss whatever the quality."""


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
        return encode_png(pixels)
    if format == "jpg":
        return _jpg(pixels)
    raise ValueError(f"this is a bug: unknown format {format!r}")


def _webp(pixels: Pixels) -> Pixels:
    file = io.BytesIO()
    try:
        Image.fromarray(pixels).save(file, "WEBP", quality=WEBP_QUALITY, method=WEBP_METHOD)
    except ValueError as error:
        if "encoding error 1" in str(error):  # so Pillow passes on that libwebp had no memory
            raise MemoryError from None
        raise
    return np.frombuffer(file.getbuffer(), np.uint8)


def _jpg(pixels: Pixels) -> Pixels:
    if pixels.ndim == 3:
        pixels = cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR)
    done, file = cv2.imencode(".jpg", pixels, (cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY))
    if not done:
        raise BackendError(f"OpenCV could not encode a JPEG of shape {pixels.shape}")
    encoded: Pixels = file.reshape(-1)
    return encoded
