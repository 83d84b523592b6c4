"""What a picture's bytes say of themselves, read before any decoder runs.

Decoders allocate what a header asks for: 34 bytes of WebP can ask for 1.5 GiB, 43 bytes of PNG for
4 GiB. Sizes, JPEG scans and PNG chunk lengths are therefore checked here, in plain Python.
"""

from __future__ import annotations

import re
import struct

from app.codecs.boxes import largest_item
from app.codecs.limits import PictureLimits
from app.codecs.tiff import tiff_size
from app.contracts.errors import ImageUnreadable, ResolutionTooHigh, TooManyScans

_SCAN_END = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")
"""Inside entropy-coded data 0xFF is followed by 0x00 (stuffing) or a restart marker; anything else
ends the scan."""
_STANDALONE = frozenset({0x01, *range(0xD0, 0xD9)})
_FRAMES = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
_START_OF_SCAN, _END_OF_IMAGE = 0xDA, 0xD9


def check_header(body: bytes, kind: str, limits: PictureLimits) -> None:
    """Raises ResolutionTooHigh, TooManyScans, or ImageUnreadable when there is no sound header;
    UnsupportedMediaType for a kind of TIFF that is not read."""
    try:
        if kind == "JPEG":
            size = _walk_jpeg(body, limits)
        elif kind == "PNG":
            size = _walk_png(body)
        elif kind == "TIFF":
            size = tiff_size(body, limits)
        elif kind in ("AVIF", "HEIC"):
            size = largest_item(body, kind)
        else:
            size = _SIZES[kind](body)
    except (struct.error, IndexError):
        raise ImageUnreadable(f"the {kind} header is incomplete") from None
    check_size(*size, limits)


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


def _walk_jpeg(body: bytes, limits: PictureLimits) -> tuple[int, int]:
    """Follow the segments; a marker's bytes inside a segment or a thumbnail do not count."""
    width = height = scans = 0
    at = 2
    while (at := body.find(b"\xff", at)) != -1 and at + 1 < len(body):
        marker = body[at + 1]
        if marker in (0x00, 0xFF):  # stray bytes and fill bytes: decoders skip them too
            at += 2 if marker == 0x00 else 1
            continue
        if marker == _END_OF_IMAGE:
            break
        if marker in _STANDALONE:
            at += 2
            continue
        if at + 4 > len(body):
            break
        (length,) = struct.unpack_from(">H", body, at + 2)
        if marker in _FRAMES and at + 9 <= len(body):
            high, wide = struct.unpack_from(">HH", body, at + 5)
            width, height = max(width, wide), max(height, high)
        at += 2 + max(length, 2)
        if marker == _START_OF_SCAN:
            scans += 1
            if scans > limits.scans:
                raise TooManyScans(
                    f"the JPEG has more than {limits.scans} scans, which is the limit",
                    limit=limits.scans,
                    received=f"more than {limits.scans}",
                )
            end = _SCAN_END.search(body, at)
            at = end.start() if end else len(body)
    if not width and not height:
        raise ImageUnreadable("the JPEG has no frame header")
    return width, height


def _walk_png(body: bytes) -> tuple[int, int]:
    """Every chunk up to IEND must lie within the body."""
    if body[:8] != b"\x89PNG\r\n\x1a\n" or body[12:16] != b"IHDR":
        raise ImageUnreadable("the PNG does not begin with a header chunk")
    width, height = struct.unpack_from(">II", body, 16)
    at = 8
    while at < len(body):
        (length,) = struct.unpack_from(">I", body, at)
        if at + 12 + length > len(body):
            raise ImageUnreadable(
                f"a PNG chunk says it has {length:,} bytes; "
                f"{max(0, len(body) - at - 12):,} are left of the file"
            )
        if body[at + 4 : at + 8] == b"IEND":
            break
        at += 12 + length
    return width, height


def _gif_size(body: bytes) -> tuple[int, int]:
    width, height = struct.unpack_from("<HH", body, 6)
    return width, height


def _webp_size(body: bytes) -> tuple[int, int]:
    kind = body[12:16]
    if kind == b"VP8X":
        return (
            int.from_bytes(body[24:27], "little") + 1,
            int.from_bytes(body[27:30], "little") + 1,
        )
    if kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", body, 21)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", body, 26)
        return width & 0x3FFF, height & 0x3FFF
    raise ImageUnreadable("the WebP has no image chunk")


def _bmp_size(body: bytes) -> tuple[int, int]:
    (header,) = struct.unpack_from("<I", body, 14)
    width, height = struct.unpack_from("<HH" if header == 12 else "<ii", body, 18)
    return width, abs(height)


_SIZES = {"GIF": _gif_size, "WebP": _webp_size, "BMP": _bmp_size}
