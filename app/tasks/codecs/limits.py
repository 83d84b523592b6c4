"""What a picture may ask for, coming in and going out."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from app.contracts.errors import ImageUnreadable, ResolutionTooHigh

WEBP_SIDE = 16_383
"""A property of the format."""
WEBP_PIXELS = 36_000_000
"""Encoding WebP with alpha takes about 26 bytes a pixel: this is what a codec process can hold."""
EXIF_BYTES = 256 * 1024
"""Cameras write a tenth of it. Pillow makes an object of every fraction in it, to find out how the
picture is turned: four microseconds for each eight bytes."""
LEAST_SHARE = 0.4
"""A picture of up to this part of the allowed pixels may take this part of the time. It has to be
enough for the slowest decoder, libde265 for HEIC, on a slow machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureLimits:
    """`pixels` in all and `side` of an upload, `scans` of a JPEG, `png_pixels` of a colour PNG.

    A colour PNG of more than 25 MP is a file of up to 100 MB; WebP and JPEG are for those.
    `seconds` is the processor time to decode a picture of `pixels`; None sets no limit. `formats`
    names the accepted formats; without any, all that can be decoded.
    """

    pixels: int = 50_000_000
    side: int = 16_384
    scans: int = 100
    png_pixels: int = 25_000_000
    seconds: float | None = None
    formats: tuple[str, ...] = ()


def check_size(width: int, height: int, limits: PictureLimits) -> None:
    """Raises ResolutionTooHigh with both numbers, or ImageUnreadable for an empty picture."""
    if width < 1 or height < 1:
        raise ImageUnreadable(f"the picture's header gives its size as {width} x {height} pixels")
    if width * height > limits.pixels:
        raise ResolutionTooHigh(
            f"the picture is {width} x {height} = {width * height:,} pixels; "
            f"the limit is {limits.pixels:,}",
            limit=limits.pixels,
            received=width * height,
        )
    if max(width, height) > limits.side:
        raise ResolutionTooHigh(
            f"the picture is {width} x {height} pixels; the limit is {limits.side:,} a side",
            limit=limits.side,
            received=max(width, height),
        )


@contextmanager
def time_limit(limits: PictureLimits) -> Iterator[None]:
    """End this process with SIGPROF when the block takes more processor time than a picture may.

    A native decoder cannot be interrupted in any other way. Without `limits.seconds` there is no
    limit.
    """
    if limits.seconds is None:
        yield
        return
    signal.setitimer(signal.ITIMER_PROF, LEAST_SHARE * limits.seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def allow_pixels(pixels: int, limits: PictureLimits) -> None:
    """Extend the limit of the block to what a picture of so many pixels may take."""
    if limits.seconds is None:
        return
    more = max(0.0, pixels / limits.pixels - LEAST_SHARE) * limits.seconds
    left, _ = signal.getitimer(signal.ITIMER_PROF)
    signal.setitimer(signal.ITIMER_PROF, left + more)
