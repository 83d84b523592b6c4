"""What a picture's bytes say of themselves, read before any decoder runs.

Decoders allocate what a header asks for: 34 bytes of WebP can ask for 1.5 GiB, 43 bytes of PNG for
4 GiB. Others take long over very little: empty scans, a million empty chunks. Sizes, lengths and
the number of what a decoder goes through are therefore checked here, in plain Python.
"""

from __future__ import annotations

import struct

from app.codecs.boxes import check_items
from app.codecs.jpeg_header import walk_jpeg
from app.codecs.limits import PictureLimits, too_many
from app.codecs.tiff import tiff_size
from app.contracts.errors import ImageUnreadable, ResolutionTooHigh

PARTS = 65_536
"""Chunks of a PNG, blocks before the picture of a GIF: Pillow reads each one by itself."""
COLOUR_PROFILES = 8
"""The PNG standard allows one; Pillow unpacks each, up to a megabyte."""
RUN_LENGTH_BUDGET = 6_000_000
"""Pixels, and two for each byte, of a run-length coded BMP: Pillow decodes those in Python, an
eighth of a microsecond each."""


def check_header(body: bytes, kind: str, limits: PictureLimits) -> None:
    """Raises ResolutionTooHigh, TooManyScans, or ImageUnreadable when there is no sound header;
    UnsupportedMediaType for a kind of TIFF that is not read."""
    try:
        if kind == "JPEG":
            size = walk_jpeg(body, limits)
        elif kind == "PNG":
            size = _walk_png(body)
        elif kind == "TIFF":
            size = tiff_size(body, limits)
        elif kind in ("AVIF", "HEIC"):
            size = check_items(body, kind)
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


def _walk_png(body: bytes) -> tuple[int, int]:
    """Every chunk up to IEND must lie within the body."""
    if body[:8] != b"\x89PNG\r\n\x1a\n" or body[12:16] != b"IHDR":
        raise ImageUnreadable("the PNG does not begin with a header chunk")
    width, height = struct.unpack_from(">II", body, 16)
    at, chunks, profiles = 8, 0, 0
    while at < len(body):
        (length,) = struct.unpack_from(">I", body, at)
        if at + 12 + length > len(body):
            raise ImageUnreadable(
                f"a PNG chunk says it has {length:,} bytes; "
                f"{max(0, len(body) - at - 12):,} are left of the file"
            )
        kind = body[at + 4 : at + 8]
        if kind == b"IEND":
            break
        chunks += 1
        profiles += kind == b"iCCP"
        if chunks > PARTS:
            raise too_many("picture", "chunks", PARTS)
        if profiles > COLOUR_PROFILES:
            raise too_many("picture", "colour profiles", COLOUR_PROFILES)
        at += 12 + length
    return width, height


def _walk_gif(body: bytes) -> tuple[int, int]:
    """Follow the blocks up to the first picture; anything else between them is one byte each."""
    width, height = struct.unpack_from("<HH", body, 6)
    at = 13 + (3 << (body[10] & 7) + 1 if body[10] & 0x80 else 0)
    parts = 0
    while at < len(body) and body[at : at + 1] not in (b",", b";"):
        if body[at] == 0x21:
            at += 2
            while at < len(body) and body[at] and parts <= PARTS:
                at += 1 + body[at]
                parts += 1
        at += 1
        parts += 1
        if parts > PARTS:
            raise too_many("picture", "blocks before the picture", PARTS)
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
    height = abs(height)
    if header != 12 and struct.unpack_from("<I", body, 30)[0] in _RUN_LENGTH_CODED:
        cost = width * height + 2 * len(body)
        if cost > RUN_LENGTH_BUDGET:
            raise ResolutionTooHigh(
                f"the run-length coded BMP is {width} x {height} pixels in {len(body):,} bytes: "
                f"{cost:,}, two for each byte; the limit is {RUN_LENGTH_BUDGET:,}",
                limit=RUN_LENGTH_BUDGET,
                received=cost,
            )
    return width, height


_RUN_LENGTH_CODED = (1, 2)
_SIZES = {"GIF": _walk_gif, "WebP": _webp_size, "BMP": _bmp_size}
