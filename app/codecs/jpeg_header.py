"""A JPEG's size, and what its scans and markers would cost, read before any decoder runs."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence

from app.codecs.limits import EXIF_BYTES, PictureLimits, too_many
from app.contracts.errors import ImageUnreadable, TooManyScans

SCAN_BUDGET = 48
"""Passes over the whole picture, summed over the components of all scans. A scan is paid for by
what it covers, not by its bytes: half a nanosecond a pixel, however empty it is. libjpeg's own
script makes 14 passes; mozjpeg's longest about twice as many."""
BUDGET_PIXELS = 12_000_000
"""Smaller pictures may make as many passes as one of this size could in the same time."""

SEGMENTS = 500
"""Of all kinds. Colour profiles take 255 at most; Pillow joins those of EXIF one by one."""
PART_SEGMENTS = 16
"""For each further JPEG of the same picture, which has neither profiles nor EXIF."""
STRAY_BYTES = 65_536
"""Fill bytes and markers without a segment outside of scans: Pillow reads each one by itself."""

_SCAN_END = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")
"""Inside entropy-coded data 0xFF is followed by 0x00 (stuffing) or a restart marker; anything else
ends the scan."""
_STANDALONE = frozenset({0x01, *range(0xD0, 0xD9)})
_FRAMES = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
_START_OF_SCAN, _END_OF_IMAGE, _APP1 = 0xDA, 0xD9, 0xE1
_EXIF = b"Exif\0\0"


class _Scans:
    """Counts the scans and the pixels they go over, against both limits: of a picture of so many
    pixels, which has so many JPEGs as parts, or of one JPEG, which says its pixels itself."""

    def __init__(self, limits: PictureLimits, *, parts: int = 1, pixels: int = 0) -> None:
        self.width = self.height = 0
        self.segments = self.stray = self.exif_bytes = 0
        self.most_segments = SEGMENTS + PART_SEGMENTS * (parts - 1)
        self._limits = limits
        self._pixels = pixels
        self._shares: Mapping[int, float] = {}
        self._count = 0
        self._passes = 0.0

    @property
    def cost(self) -> float:
        """Pixels that all scans so far go over; every part is taken for as large as the largest."""
        return self._passes * self.width * self.height

    @property
    def budget(self) -> int:
        return SCAN_BUDGET * max(self._pixels or self.width * self.height, BUDGET_PIXELS)

    def begin(self) -> None:
        """A JPEG begins."""
        self._count = 0

    def frame(self, body: bytes, at: int) -> None:
        """Read a frame header, the marker of which lies at `at`."""
        high, wide, count = struct.unpack_from(">HHB", body, at + 5)
        self.width, self.height = max(self.width, wide), max(self.height, high)
        parts = list(struct.iter_unpack("3B", body[at + 10 :][: 3 * count]))
        sizes = {number: (factors >> 4) * (factors & 15) for number, factors, _ in parts}
        if len(sizes) < len(parts):
            # Which of them a scan goes over is for the decoder to choose.
            raise ImageUnreadable("two components of the JPEG have the same number")
        # A component of lower resolution has fewer samples to go over.
        largest = max(sizes.values(), default=0) or 1
        self._shares = {number: size / largest for number, size in sizes.items()}

    def scan(self, body: bytes, at: int) -> None:
        """Count a scan, the marker of which lies at `at`. Raises TooManyScans."""
        most = self._limits.scans
        self._count += 1
        if self._count > most:
            raise TooManyScans(
                f"the JPEG has more than {most} scans, which is the limit",
                limit=most,
                received=f"more than {most}",
            )
        count = body[at + 4]
        components = body[at + 5 : at + 5 + 2 * count : 2]
        self._passes += sum(self._shares.get(number, 1.0) for number in components)
        if self.cost > self.budget:
            raise TooManyScans(
                f"the JPEG's first {self._count} scans go over {self.cost:,.0f} "
                f"pixels; the limit is {self.budget:,} for {self.width} x {self.height}",
                limit=self.budget,
                received=round(self.cost),
            )

    def exif(self, length: int) -> None:
        """Count a segment of EXIF, all of which Pillow joins. Raises ImageUnreadable."""
        self.exif_bytes += length
        if self.exif_bytes > EXIF_BYTES:
            raise too_many("JPEG", "bytes of EXIF", EXIF_BYTES)


def walk_jpeg(body: bytes, limits: PictureLimits) -> tuple[int, int]:
    """Width and height. Raises TooManyScans, and ImageUnreadable where markers are missing or too
    many."""
    scans = _Scans(limits)
    _walk(body, scans)
    return scans.width, scans.height


def walk_parts(parts: Sequence[bytes], pixels: int, limits: PictureLimits) -> tuple[int, int]:
    """The largest width and height of JPEGs that together make a picture of so many pixels, and may
    cost what one JPEG of that size may. Raises as walk_jpeg does."""
    scans = _Scans(limits, parts=len(parts), pixels=pixels)
    for part in parts:
        _walk(part, scans)
    return scans.width, scans.height


def check_decoding_twice(body: bytes, limits: PictureLimits) -> None:
    """Raises TooManyScans where the budget has no room for every scan a second time."""
    scans = _Scans(limits)
    _walk(body, scans)
    if 2 * scans.cost > scans.budget:
        raise TooManyScans(
            f"the JPEG ends in grey; to tell whether it is complete its scans would go over "
            f"{2 * scans.cost:,.0f} pixels; the limit is {scans.budget:,} for "
            f"{scans.width} x {scans.height}",
            limit=scans.budget,
            received=round(2 * scans.cost),
        )


def _walk(body: bytes, scans: _Scans) -> None:
    """Follow the segments; a marker's bytes inside a segment or a thumbnail do not count."""
    scans.begin()
    at = 2
    while (at := body.find(b"\xff", at)) != -1 and at + 1 < len(body):
        marker = body[at + 1]
        if marker == _END_OF_IMAGE:
            break
        if marker in (0x00, 0xFF) or marker in _STANDALONE:  # decoders skip them too
            scans.stray += 1
            if scans.stray > STRAY_BYTES:
                raise too_many("JPEG", "fill bytes between its segments", STRAY_BYTES)
            at += 1 if marker == 0xFF else 2
            continue
        if at + 4 > len(body):
            break
        scans.segments += 1
        if scans.segments > scans.most_segments:
            raise too_many("JPEG", "segments", scans.most_segments)
        (length,) = struct.unpack_from(">H", body, at + 2)
        if marker in _FRAMES and at + 10 <= len(body):
            scans.frame(body, at)
        elif marker == _START_OF_SCAN and at + 5 <= len(body):
            scans.scan(body, at)
        elif marker == _APP1 and body.startswith(_EXIF, at + 4):
            scans.exif(length)
        at += 2 + max(length, 2)
        if marker == _START_OF_SCAN:
            end = _SCAN_END.search(body, at)
            at = end.start() if end else len(body)
    if not scans.width and not scans.height:
        raise ImageUnreadable("the JPEG has no frame header")
