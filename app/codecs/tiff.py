"""The kind of a TIFF, read from its first directory before the picture is opened.

TIFF is a family of formats. Those that Pillow and libtiff read into the right colours are
accepted, the others are rejected by name.
"""

from __future__ import annotations

import io
from typing import Any

from PIL.TiffImagePlugin import ImageFileDirectory_v2

from app.contracts.errors import UnsupportedMediaType

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
    """Raises UnsupportedMediaType, or any exception of Pillow's for a damaged directory."""
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
