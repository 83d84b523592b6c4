"""What a picture may ask for, coming in and going out."""

from __future__ import annotations

from dataclasses import dataclass

from app.contracts.errors import ImageUnreadable

WEBP_SIDE = 16_383
"""A property of the format."""
WEBP_PIXELS = 36_000_000
"""Encoding WebP with alpha takes about 26 bytes a pixel: this is what a codec process can hold."""
EXIF_BYTES = 256 * 1024
"""Cameras write a tenth. Pillow makes an object of every fraction in it, four millionths of a
second for each eight bytes, to tell how a picture is turned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureLimits:
    """`pixels` in all and `side` of an upload, `scans` of a JPEG, `png_pixels` of a colour PNG.

    A colour PNG of more than 25 MP is a file of up to 100 MB; WebP and JPEG are for those.
    """

    pixels: int = 50_000_000
    side: int = 16_384
    scans: int = 100
    png_pixels: int = 25_000_000


def too_many(whose: str, parts: str, limit: int) -> ImageUnreadable:
    """What is raised where something of a picture is counted only up to `limit`."""
    return ImageUnreadable(
        f"the {whose} has more than {limit:,} {parts}, which is the limit",
        limit=limit,
        received=f"more than {limit}",
    )
