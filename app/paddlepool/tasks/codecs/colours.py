"""Converts decoded pictures of any mode to 8-bit sRGB. Runs only in a codec process."""

import io
from collections.abc import Callable
from functools import lru_cache

import cv2
import numpy as np
from PIL import Image, ImageCms

from paddlepool.tasks.codecs.picture import Pixels, bands

PROFILE_BYTES = 4 << 20
"""A larger ICC profile is ignored. Those of printing presses have up to 3 MB."""
CLEAR_WHITE = 0x00FFFFFF
"""Transparent white as one number, the highest number of all colours with alpha 0."""

_SPACES = {"RGB": "RGB", "RGBA": "RGB", "L": "GRAY", "CMYK": "CMYK"}
_SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB"))
_LEVELS = np.arange(256, dtype=np.uint8)
_PROBE = np.stack(np.meshgrid(*[_LEVELS[::15]] * 3), axis=-1).reshape(1, -1, 3)
"""Colours at which a profile is compared with sRGB."""


def to_srgb(image: Image.Image, cover: Pixels | None = None) -> Pixels:
    """Convert a loaded picture to RGBA if any pixel is transparent, else to RGB.

    Colours become white where alpha is 0. `cover` (H, W) is an alpha in addition to that of
    `image`; the lower of the two counts. An ICC profile is applied, unless it is broken, larger
    than PROFILE_BYTES, almost sRGB or for another colour space.
    """
    profile = image.info.get("icc_profile")
    if image.mode.startswith("I"):
        # Pillow's own conversion of 16 bits clips everything above 255 to white.
        values = np.asarray(image).astype(np.uint32)
        image = Image.fromarray(((values + 128) // 257).astype(np.uint8))
    if image.mode == "La":  # grey premultiplied by alpha
        image = image.convert("LA")
    transparent = cover is not None or image.has_transparency_data
    read = _reader(image.mode, "RGBA" if transparent else "RGB", profile)
    height, width = image.height, image.width
    pixels = np.empty((height, width, 4 if transparent else 3), np.uint8)
    # In bands, because Pillow would make one or two more copies of a whole picture.
    for rows in bands(height, width):
        pixels[rows] = read(image.crop((0, rows.start, width, rows.stop)))
    if not transparent:
        return pixels
    if cover is not None:
        np.minimum(pixels[..., 3], cover, out=pixels[..., 3])
    if pixels[..., 3].min() == 255:
        return np.ascontiguousarray(pixels[..., :3])
    for rows in bands(height, width):
        whole = pixels[rows].view("<u4")  # a pixel is one number; alpha is its highest byte
        np.putmask(whole, whole <= CLEAR_WHITE, CLEAR_WHITE)
    return pixels


def _reader(source: str, mode: str, profile: object) -> Callable[[Image.Image], Pixels]:
    """Return a function that converts a part of a picture from the mode `source` to `mode`.

    The function applies the ICC profile if the conditions of to_srgb() are met.
    """

    def plain(part: Image.Image) -> Pixels:
        return np.asarray(part if part.mode == mode else part.convert(mode))

    source = {"1": "L", "L": "L", "LA": "L", "CMYK": "CMYK"}.get(source, mode)
    if not isinstance(profile, bytes) or not 0 < len(profile) <= PROFILE_BYTES:
        return plain
    transform = _transform(profile, source)
    if transform is None:
        return plain
    if source == "L":
        table = np.asarray(transform.apply(Image.fromarray(_LEVELS[None])))
        table = np.dstack((table, _LEVELS[None]))[..., : len(mode)]
        return lambda part: cv2.LUT(plain(part), table)
    if source == "CMYK":
        return lambda part: np.asarray(transform.apply(part))

    def corrected(part: Image.Image) -> Pixels:
        part = part if part.mode == mode else part.convert(mode)
        return np.asarray(transform.apply_in_place(part))

    return corrected


@lru_cache(maxsize=8)
def _transform(profile: bytes, source: str) -> ImageCms.ImageCmsTransform | None:
    """Return the conversion to sRGB of a picture whose mode is `source`; RGBA keeps its alpha.

    Returns None if the profile cannot be used or is for another colour space. Also returns None if
    it changes no colour by more than one level, unless `source` is CMYK.
    """
    try:
        opened = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        if opened.profile.xcolor_space.strip() != _SPACES[source]:
            return None
        transform = ImageCms.buildTransform(
            opened,
            _SRGB,
            source,
            "RGBA" if source == "RGBA" else "RGB",
            ImageCms.Intent.RELATIVE_COLORIMETRIC,
            ImageCms.Flags.BLACKPOINTCOMPENSATION,
        )
    except (OSError, ValueError, ImageCms.PyCMSError):
        return None
    if source == "CMYK":
        return transform
    probe = Image.fromarray(_PROBE if source != "L" else _LEVELS[None]).convert(source)
    shown, seen = (
        np.asarray(image.convert("RGB"), np.int16) for image in (probe, transform.apply(probe))
    )
    return transform if np.abs(shown - seen).max() > 1 else None
