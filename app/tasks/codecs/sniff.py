"""Detects a picture's format by its content alone; file names and declared types are ignored."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from importlib.util import find_spec

from app.contracts.errors import ConfigError, UnsupportedMediaType

ACCEPTED = ("JPEG", "PNG", "WebP", "GIF", "BMP", "TIFF", "AVIF")
HEIC_DECODER = "pi_heif"

_PREFIXES = (
    (b"\xff\xd8", "JPEG"),
    (b"\x89PNG", "PNG"),
    (b"GIF8", "GIF"),
    (b"BM", "BMP"),
    (b"II*\x00", "TIFF"),
    (b"MM\x00*", "TIFF"),
    (b"II+\x00", "BigTIFF"),
    (b"MM\x00+", "BigTIFF"),
    (b"\x00\x00\x00\x0cjP  ", "JPEG 2000"),
    (b"\xff\x4f\xff\x51", "JPEG 2000"),
    (b"\x00\x00\x00\x0cJXL ", "JPEG XL"),
    (b"\xff\x0a", "JPEG XL"),
    (b"%PDF", "PDF"),
    (b"%!PS", "EPS"),
    (b"\xc5\xd0\xd3\xc6", "EPS"),
    (b"8BPS", "PSD"),
    (b"\x00\x00\x01\x00", "ICO"),
    (b"DDS ", "DDS"),
    (b"PK\x03\x04", "ZIP"),
)


@cache
def accepted_formats() -> tuple[str, ...]:
    """ACCEPTED, and HEIC if its decoder, an extra, is installed."""
    return (*ACCEPTED, "HEIC") if find_spec(HEIC_DECODER) else ACCEPTED


def formats_named(names: Iterable[str]) -> tuple[str, ...]:
    """The accepted formats with these names, ignoring case. Raises ConfigError for other names."""
    known = {name.lower(): name for name in accepted_formats()}
    if unknown := [name for name in names if name.lower() not in known]:
        raise ConfigError(
            f"PADDLEPOOL_PICTURE_FORMATS: {', '.join(unknown)} cannot be read here; "
            f"formats are {', '.join(known)}"
        )
    return tuple(known[name.lower()] for name in names)


def sniff(body: bytes, only: Sequence[str] = ()) -> str:
    """The format's name: one of `only`, or by default any accepted format.

    Raises UnsupportedMediaType, which names the format of the file and the accepted formats.
    """
    name, formats = _name(body), only or accepted_formats()
    if name in formats:
        return name
    accepted = ", ".join(formats)
    what = name or "in no picture format this server knows"
    raise UnsupportedMediaType(
        f"the file is {what}; accepted are {accepted} (told by content, not by name)",
        limit=accepted,
        received=name or None,
    )


def _name(body: bytes) -> str:
    for prefix, name in _PREFIXES:
        if body.startswith(prefix):
            return name
    if body[:4] == b"RIFF" and body[8:12] == b"WEBP":
        return "WebP"
    if body[4:8] == b"ftyp":
        return _box_brand(body)
    head = body[:1024].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if head.startswith((b"<svg", b"<?xml", b"<!--", b"<!doctype svg")) and b"<svg" in body[:4096]:
        return "SVG"
    return ""


def _box_brand(body: bytes) -> str:
    """Tell HEIC from AVIF and other ISO media by the brands in the first box."""
    brands = body[8 : min(64, max(16, int.from_bytes(body[:4], "big")))]
    if b"avif" in brands or b"avis" in brands:
        return "AVIF"
    if any(brand in brands for brand in (b"heic", b"heix", b"hevc", b"heim", b"mif1", b"msf1")):
        return "HEIC"
    return "ISO media"
