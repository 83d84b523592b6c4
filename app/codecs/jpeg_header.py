"""The scans of a JPEG and what they would cost, read before the decoder runs.

A scan costs by the pixels that it covers and not by its bytes: half a nanosecond a pixel, however
empty it is. A small file can therefore ask for hours of work.
"""

from __future__ import annotations

import re
import struct

from app.codecs.limits import PictureLimits
from app.contracts.errors import TooManyScans

SCAN_BUDGET = 48
"""Passes over the whole picture, summed over the components of all scans. The script of libjpeg
makes 14; the longest of mozjpeg makes about twice as many."""
BUDGET_PIXELS = 12_000_000
"""Smaller pictures may make as many passes as one of this size could in the same time."""

_SCAN_END = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")
"""Inside entropy-coded data 0xFF is followed by 0x00 (stuffing) or a restart marker; anything else
ends the scan."""
_STANDALONE = frozenset({0x00, 0x01, *range(0xD0, 0xD9)})
_START_OF_SCAN, _END_OF_IMAGE, _FILL = 0xDA, 0xD9, 0xFF


def check_scans(body: bytes, width: int, height: int, limits: PictureLimits) -> None:
    """Raises TooManyScans. Markers inside segments, such as those of a thumbnail, do not count."""
    budget = SCAN_BUDGET * max(width * height, BUDGET_PIXELS)
    scans = passes = 0
    at = 2
    while (at := body.find(b"\xff", at)) != -1 and at + 4 < len(body):
        marker = body[at + 1]
        if marker == _END_OF_IMAGE:
            break
        if marker == _FILL or marker in _STANDALONE:
            at += 1 if marker == _FILL else 2
            continue
        (length,) = struct.unpack_from(">H", body, at + 2)
        if marker != _START_OF_SCAN:
            at += 2 + max(length, 2)
            continue
        scans += 1
        passes += body[at + 4]
        if scans > limits.scans:
            raise TooManyScans(
                f"the JPEG has more than {limits.scans} scans, which is the limit",
                limit=limits.scans,
                received=f"more than {limits.scans}",
            )
        if (cost := passes * width * height) > budget:
            raise TooManyScans(
                f"the JPEG's first {scans} scans go over {cost:,} pixels; "
                f"the limit is {budget:,} for {width} x {height}",
                limit=budget,
                received=cost,
            )
        end = _SCAN_END.search(body, at + 2 + max(length, 2))
        at = end.start() if end else len(body)
