"""Pictures worked on by bands of rows, where whole ones would not fit as floats."""

from __future__ import annotations

from collections.abc import Iterator

BAND_PIXELS = 1 << 16
"""Small enough for a band and its floats to stay in the processor's cache."""


def band_rows(width: int, *, step: int = 1) -> int:
    """Rows in a band of about BAND_PIXELS, a multiple of `step`."""
    return max(1, BAND_PIXELS // (width * step)) * step


def bands(height: int, width: int, *, step: int = 1) -> Iterator[slice]:
    """Slices that cut `height` rows into bands."""
    rows = band_rows(width, step=step)
    return (slice(top, min(height, top + rows)) for top in range(0, height, rows))
