"""Limits on uploaded and encoded pictures."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from app.contracts.errors import ImageUnreadable, ResolutionTooHigh

WEBP_SIDE = 16_383
"""Longest side of a WebP, a limit of the format."""
WEBP_PIXELS = 36_000_000
"""Most pixels of a WebP. Encoding one with alpha takes about 26 bytes of memory a pixel, and a
codec process cannot hold more."""
EXIF_BYTES = 256 * 1024
"""Most bytes of metadata in which the orientation is looked up. Cameras write a tenth of that.
Pillow makes an object of every fraction in it: four microseconds for each eight bytes."""
LEAST_SHARE = 0.4
"""A picture with up to this share of the allowed pixels gets this share of the allowed time. That
must be enough for the slowest decoder, libde265 for HEIC, on a slow machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureLimits:
    """Most pixels and longest side of an upload, and other limits.

    `scans` limits a JPEG, `png_pixels` a colour PNG: above 25 MP its file could exceed 100 MB, so
    larger results need WebP or JPEG. `seconds` is the processor time to decode a picture of
    `pixels`; None sets no limit. `formats` names the accepted formats; if empty, every format that
    can be decoded is accepted.
    """

    pixels: int = 50_000_000
    side: int = 16_384
    scans: int = 100
    png_pixels: int = 25_000_000
    seconds: float | None = None
    formats: tuple[str, ...] = ()


def check_size(width: int, height: int, limits: PictureLimits) -> None:
    """Raise ResolutionTooHigh with both numbers, or ImageUnreadable for an empty picture."""
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
    """End this process with SIGPROF if the block takes more processor time than a picture may.

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
    """Extend the time limit of the block to the time allowed for a picture of `pixels` pixels."""
    if limits.seconds is None:
        return
    more = max(0.0, pixels / limits.pixels - LEAST_SHARE) * limits.seconds
    left, _ = signal.getitimer(signal.ITIMER_PROF)
    signal.setitimer(signal.ITIMER_PROF, left + more)
