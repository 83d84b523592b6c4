"""The processor time that one picture may take, by the size that its header declares."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from app.codecs.limits import PictureLimits

LEAST_SHARE = 0.4
"""A picture of up to this part of the allowed pixels may take this part of the time. It has to be
enough for the slowest decoder, libde265 for HEIC, on a slow machine."""


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
