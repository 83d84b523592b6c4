"""Limits on uploaded and encoded pictures."""

import re
import signal
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec

from paddlepool.contracts import errors

WEBP_SIDE = 16_383
"""Longest side of a WebP, a limit of the format."""
WEBP_PIXELS = 36_000_000
"""Maximum pixels of a WebP. Encoding one with alpha takes about 26 bytes of memory per pixel."""
EXIF_BYTES = 256 * 1024
"""Maximum bytes of metadata in which the orientation is looked up: ten times what cameras write.
From larger metadata, Pillow would create too many objects, one for each fraction."""
LEAST_SHARE = 0.4
"""Share of `PictureLimits.seconds` that every picture gets at least. Even the slowest decoder needs
no more for a small picture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureLimits:
    """Limits on uploaded pictures, and on the pixels of a colour PNG in a reply (`png_pixels`).

    `side` is the longest side in pixels, `scans` the number of scans of a JPEG. `seconds` is the
    processor time allowed for a picture of the maximum number of `pixels`, 0 for any time; a
    smaller picture gets less, but at least LEAST_SHARE of it. If `formats` is empty, every format
    that can be decoded is accepted. Cameras of 64 megapixels make up to 64.5 million pixels.
    """

    pixels: int = 65_000_000
    side: int = 16_384
    scans: int = 100
    png_pixels: int = 65_000_000
    seconds: float = 0.0
    formats: tuple[str, ...] = ()


def check_size(width: int, height: int, limits: PictureLimits) -> None:
    """Raise ResolutionTooHigh if the picture exceeds a limit, ImageUnreadable if it is empty."""
    if width < 1 or height < 1:
        raise errors.ImageUnreadable(
            f"the picture's header gives its size as {width} x {height} pixels"
        )
    if width * height > limits.pixels:
        raise errors.ResolutionTooHigh(
            f"the picture is {width} x {height} = {width * height:,} pixels; "
            f"the limit is {limits.pixels:,}",
            limit=limits.pixels,
            received=width * height,
        )
    if max(width, height) > limits.side:
        raise errors.ResolutionTooHigh(
            f"the picture is {width} x {height} pixels; the limit is {limits.side:,} a side",
            limit=limits.side,
            received=max(width, height),
        )


@contextmanager
def time_limit(limits: PictureLimits) -> Iterator[None]:
    """End this process with SIGPROF if the block takes too much processor time.

    A native decoder cannot be interrupted in any other way. The limit is LEAST_SHARE of
    `limits.seconds` until allow_pixels() extends it; there is none if `limits.seconds` is 0.
    """
    signal.setitimer(signal.ITIMER_PROF, LEAST_SHARE * limits.seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def allow_pixels(pixels: int, limits: PictureLimits) -> None:
    """Extend the limit on processor time to the time that a picture of `pixels` pixels may take.

    Call it once within time_limit().
    """
    more = max(0.0, pixels / limits.pixels - LEAST_SHARE) * limits.seconds
    left, _ = signal.getitimer(signal.ITIMER_PROF)
    signal.setitimer(signal.ITIMER_PROF, left + more)


ACCEPTED = ("JPEG", "PNG", "WebP", "GIF", "BMP", "TIFF", "AVIF")
HEIC_DECODER = "pi_heif"

_PREFIXES: dict[str, bytes | tuple[bytes, ...]] = {
    "JPEG": b"\xff\xd8",
    "PNG": b"\x89PNG",
    "GIF": b"GIF8",
    "BMP": b"BM",
    "TIFF": (b"II*\x00", b"MM\x00*"),
    "BigTIFF": (b"II+\x00", b"MM\x00+"),
    "JPEG 2000": (b"\x00\x00\x00\x0cjP  ", b"\xff\x4f\xff\x51"),
    "JPEG XL": (b"\x00\x00\x00\x0cJXL ", b"\xff\x0a"),
    "PDF": b"%PDF",
    "EPS": (b"%!PS", b"\xc5\xd0\xd3\xc6"),
    "PSD": b"8BPS",
    "ICO": b"\x00\x00\x01\x00",
    "DDS": b"DDS ",
    "ZIP": b"PK\x03\x04",
}


@cache
def accepted_formats() -> tuple[str, ...]:
    """Return the formats that can be decoded: ACCEPTED, and HEIC if its decoder is installed."""
    return (*ACCEPTED, "HEIC") if find_spec(HEIC_DECODER) else ACCEPTED


def formats_named(names: Iterable[str]) -> tuple[str, ...]:
    """Return the formats with these names, which may be in lower or upper case.

    Raises ConfigError for a name that is not in accepted_formats().
    """
    known = {name.lower(): name for name in accepted_formats()}
    if unknown := [name for name in names if name.lower() not in known]:
        raise errors.ConfigError(
            f"PADDLEPOOL_PICTURE_FORMATS: {', '.join(unknown)} cannot be read here; "
            f"formats are {', '.join(known)}"
        )
    return tuple(known[name.lower()] for name in names)


def sniff(body: bytes, only: Sequence[str] = ()) -> str:
    """Return the name of the format of a file, judged by its first bytes.

    Raises UnsupportedMediaType if the format is unknown or is not in `only`. If `only` is empty,
    all of accepted_formats() are allowed.
    """
    name, formats = _name(body), only or accepted_formats()
    if name in formats:
        return name
    accepted = ", ".join(formats)
    what = name or "in no picture format that this server knows"
    raise errors.UnsupportedMediaType(
        f"the file is {what}; accepted are {accepted}. The content decides, not the file's name",
        limit=accepted,
        received=name or None,
    )


def _name(body: bytes) -> str:
    for name, prefixes in _PREFIXES.items():
        if body.startswith(prefixes):
            return name
    if body[:4] == b"RIFF" and body[8:12] == b"WEBP":
        return "WebP"
    if body[4:8] == b"ftyp":
        brands = body[8 : min(64, max(16, int.from_bytes(body[:4], "big")))]
        if re.search(rb"avi[fs]", brands):
            return "AVIF"
        return "HEIC" if re.search(rb"hei[cxm]|hevc|mif1|msf1", brands) else "ISO media"
    head = body[:1024].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if head.startswith((b"<svg", b"<?xml", b"<!--", b"<!doctype svg")) and b"<svg" in body[:4096]:
        return "SVG"
    return ""
