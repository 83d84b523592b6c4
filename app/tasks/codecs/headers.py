"""Checks of a JPEG or a TIFF before its decoder runs.

The cost of a JPEG scan depends on the pixels that it covers, not on its bytes: half a nanosecond a
pixel, even if the scan is empty. A small file can therefore cause hours of work.

TIFF is a family of formats. The kinds that Pillow and libtiff decode to the right colours are
accepted; the others are rejected by name.
"""

from __future__ import annotations

import io
import re
import struct
from typing import Any

from PIL.TiffImagePlugin import ImageFileDirectory_v2

from app.contracts.errors import TooManyScans, UnsupportedMediaType
from app.tasks.codecs.limits import PictureLimits

SCAN_BUDGET = 48
"""Passes over the whole picture, summed over the components of all scans. The scan script of
libjpeg makes 14; the longest script of mozjpeg makes about twice as many."""
BUDGET_PIXELS = 12_000_000
"""A smaller picture gets the budget of a picture of this size."""

_SCAN_END = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")
"""Inside entropy-coded data 0xFF is followed by 0x00 (stuffing) or a restart marker; anything else
ends the scan."""
_STANDALONE = frozenset({0x00, 0x01, *range(0xD0, 0xD9)})
_START_OF_SCAN, _END_OF_IMAGE, _FILL = 0xDA, 0xD9, 0xFF


def check_scans(body: bytes, width: int, height: int, limits: PictureLimits) -> None:
    """Raise TooManyScans if a JPEG exceeds the limit of scans or their budget.

    Markers inside segments, such as those of a thumbnail, do not count.
    """
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


BITS, COMPRESSION, COLOURS, SAMPLES, SAMPLE_FORMAT = 258, 259, 262, 277, 339

_COMPRESSIONS = {1: "none", 2: "CCITT", 3: "CCITT", 4: "CCITT", 5: "LZW", 7: "JPEG"} | {
    8: "Deflate",
    32946: "Deflate",
    32773: "PackBits",
}
_COLOURS = {0: "grey", 1: "grey", 2: "RGB", 3: "palette", 5: "CMYK", 6: "YCbCr"}
_WHITE_IS_ZERO, _YCBCR, _JPEG = 0, 6, 7
MOST_SAMPLES = 6


def check_kind(body: bytes) -> None:
    """Check the kind of a TIFF by its first directory.

    Raises UnsupportedMediaType, or any exception of Pillow's if the directory is damaged.
    """
    file = io.BytesIO(body)
    page = ImageFileDirectory_v2(body[:8])
    file.seek(page.next)
    page.load(file)
    compression, colours = page.get(COMPRESSION, 1), page.get(COLOURS, 0)
    if compression not in _COMPRESSIONS:
        raise _unsupported(f"compression {compression}", ", ".join(_names(_COMPRESSIONS)))
    if colours not in _COLOURS or (colours == _YCBCR and compression != _JPEG):
        raise _unsupported(
            f"photometric interpretation {colours} and compression {compression}",
            ", ".join(_names(_COLOURS)) + " (YCbCr in JPEG)",
        )
    bits, formats = _numbers(page.get(BITS, 1)), _numbers(page.get(SAMPLE_FORMAT, 1))
    inverted = colours == _WHITE_IS_ZERO and bits == {16}
    if len(bits) != 1 or not bits <= {1, 2, 4, 8, 16} or formats != {1} or inverted:
        raise _unsupported(
            f"samples of {_listed(bits)} bits in format {_listed(formats)}",
            "unsigned whole numbers of 1, 2, 4, 8 or 16 bits, 0 being black in those of 16",
        )
    samples = page.get(SAMPLES, 1)
    if not 1 <= samples <= MOST_SAMPLES:
        raise _unsupported(f"{samples} samples a pixel", f"1 to {MOST_SAMPLES}")


def _numbers(values: Any) -> set[int]:
    return set(values[:MOST_SAMPLES]) if isinstance(values, tuple) else {values}


def _unsupported(what: str, accepted: str) -> UnsupportedMediaType:
    return UnsupportedMediaType(
        f"the file is a TIFF with {what}; accepted are {accepted}",
        limit=accepted,
        received=f"TIFF with {what}",
    )


def _names(kinds: dict[int, str]) -> list[str]:
    return list(dict.fromkeys(kinds.values()))


def _listed(numbers: set[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))
