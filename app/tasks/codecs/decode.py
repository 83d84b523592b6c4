"""Decodes uploaded bytes to upright 8-bit pixels with Pillow. Runs only in a codec process.

OpenCV's decoders crashed on hostile files, so OpenCV only rotates and flips arrays from Pillow.
"""

import io
import os
import re
import struct
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import cv2
import numpy as np
from PIL import (  # noqa: F401 - plugins are imported by name: Image.open() must not look for more
    AvifImagePlugin,
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    JpegImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)
from PIL.TiffImagePlugin import ImageFileDirectory_v2

from app.contracts import errors
from app.tasks.codecs.limits import (
    EXIF_BYTES,
    PictureLimits,
    allow_pixels,
    check_size,
    sniff,
    time_limit,
)
from app.tasks.codecs.picture import Pixels, bands

CLEAR_WHITE = 0x00FFFFFF
"""White with alpha 0, the highest value with alpha 0: red, green, blue and alpha as one number."""

_ORIENTATION = 0x0112
_METADATA = ("exif", "Raw profile type exif", "xmp", "XML:com.adobe.xmp")

_TURNS: dict[int, Callable[[Pixels], Pixels]] = {
    2: lambda pixels: cv2.flip(pixels, 1),
    3: lambda pixels: cv2.rotate(pixels, cv2.ROTATE_180),
    4: lambda pixels: cv2.flip(pixels, 0),
    5: cv2.transpose,
    6: lambda pixels: cv2.rotate(pixels, cv2.ROTATE_90_CLOCKWISE),
    7: lambda pixels: cv2.rotate(cv2.transpose(pixels), cv2.ROTATE_180),
    8: lambda pixels: cv2.rotate(pixels, cv2.ROTATE_90_COUNTERCLOCKWISE),
}


def decode(body: bytes, limits: PictureLimits) -> Pixels:
    """Decode the first frame or page and turn it upright; RGBA if it is transparent, else RGB.

    Colours are white where alpha is 0: what nobody can see must not change a result.
    Raises InputError. Ends the process if decoding takes more processor time than `limits.seconds`
    allows for a picture of this size.
    """
    if not body:
        raise errors.FileMissing("the picture has 0 bytes")
    kind = sniff(body, limits.formats)
    try:
        with warnings.catch_warnings(), time_limit(limits):
            warnings.simplefilter("ignore")
            return _decode(body, kind, limits)
    except (errors.InputError, MemoryError):
        raise
    except Image.DecompressionBombError:  # more than twice the limit
        raise errors.ResolutionTooHigh(
            f"the picture holds more than the limit of {limits.pixels:,} pixels",
            limit=limits.pixels,
            received=f"more than {limits.pixels}",
        ) from None
    except Exception:
        # Decoders raise a dozen kinds of exception for damaged data.
        raise errors.ImageUnreadable(f"the {kind} data is damaged or incomplete") from None


def _decode(body: bytes, kind: str, limits: PictureLimits) -> Pixels:
    # Pillow rejects a picture of more than twice this size before it allocates memory for it.
    Image.MAX_IMAGE_PIXELS = limits.pixels
    # One core per picture: the other cores have pictures of their own.
    AvifImagePlugin.DEFAULT_MAX_THREADS = 1
    quiet: AbstractContextManager[None] = nullcontext()
    if kind == "TIFF":
        check_kind(body)
        quiet = _discard_stderr()
    elif kind == "AVIF":
        # Set the brand of a still picture. With the brand of a sequence, the decoder would return
        # a frame of the sequence's track.
        body = body[:8] + b"avif" + body[12:]
    elif kind == "HEIC":  # sniff() returns HEIC only if the extra with its decoder is installed
        import pi_heif

        pi_heif.register_heif_opener(
            decode_threads=1, thumbnails=False, depth_images=False, aux_images=False
        )
    name = "HEIF" if kind == "HEIC" else kind.upper()
    with quiet, Image.open(io.BytesIO(body), formats=(name,)) as image:
        width, height = image.size
        check_size(width, height, limits)
        allow_pixels(width * height, limits)
        if kind == "JPEG":
            check_scans(body, width, height, limits)
        image.load()
        pixels = _to_eight_bits(image)
        if kind == "JPEG" and image.mode == "RGB" and _is_cut_short(body, pixels):
            raise errors.ImageUnreadable("the JPEG data ends before the picture does")
        turn = _TURNS.get(_orientation(image))
    return np.ascontiguousarray(turn(pixels)) if turn else pixels


@contextmanager
def _discard_stderr() -> Iterator[None]:
    """Discard what the block writes to standard error: libtiff writes a line for each damaged row.

    Standard error becomes a pipe without a reader, because a codec process may not open /dev/null.
    """
    kept = os.dup(2)
    unread, nowhere = os.pipe()
    os.close(unread)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _is_cut_short(body: bytes, pixels: Pixels) -> bool:
    """True if data is missing at the end of a JPEG that has an end marker.

    libjpeg fills the missing part with mid-grey. If the bottom right corner is mid-grey, decode
    again with extra bytes inserted before the end marker: they change only an incomplete picture.
    """
    end = body.rfind(b"\xff\xd9")
    if end == -1 or not (pixels[-8:, -8:] == 128).all():
        return False
    longer = body[:end] + bytes(range(1, 128)) + body[end:]
    with Image.open(io.BytesIO(longer), formats=("JPEG",)) as image:
        return not np.array_equal(_to_eight_bits(image), pixels)


def _orientation(image: Image.Image) -> int:
    """The EXIF orientation, 1 to 8; 1 if the metadata is broken or oversized."""
    if any(len(image.info.get(name) or b"") > EXIF_BYTES for name in _METADATA):
        return 1
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except Exception:
        return 1


def _to_eight_bits(image: Image.Image) -> Pixels:
    if image.mode.startswith("I"):
        return _from_sixteen_bits(image)
    if image.mode == "La":  # grey premultiplied by alpha
        image = image.convert("LA")
    transparent = image.has_transparency_data
    wanted = "RGBA" if transparent else "RGB"
    pixels = _array(image if image.mode == wanted else image.convert(wanted))
    if not transparent:
        return pixels
    if pixels[..., 3].min() == 255:
        return np.ascontiguousarray(pixels[..., :3])
    for rows in bands(image.height, image.width):
        whole = pixels[rows].view("<u4")  # a pixel is one number; alpha is its highest byte
        np.putmask(whole, whole <= CLEAR_WHITE, CLEAR_WHITE)
    return pixels


def _array(image: Image.Image) -> Pixels:
    """Convert in bands, because with np.asarray(image) Pillow holds two copies of the picture."""
    pixels = np.empty((image.height, image.width, len(image.getbands())), np.uint8)
    for rows in bands(image.height, image.width):
        pixels[rows] = np.asarray(image.crop((0, rows.start, image.width, rows.stop)))
    return pixels


def _from_sixteen_bits(image: Image.Image) -> Pixels:
    """Convert 16-bit grey. Pillow's own conversion clips everything above 255 to white."""
    values = np.asarray(image).astype(np.uint16, copy=False)
    grey = ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)
    key = image.info.get("transparency")
    if not isinstance(key, int):
        return np.repeat(grey[..., None], 3, axis=2)
    alpha = np.where(values == key, 0, 255).astype(np.uint8)
    return np.stack([grey, grey, grey, alpha], axis=2)


SCAN_BUDGET = 48
"""Maximum passes over the whole picture. A scan makes one pass for each of its components. A
progressive JPEG with libjpeg's default scans takes 14 passes, with mozjpeg's longest list of scans
about twice as many. Passes are limited because the time that a scan takes depends on the number of
pixels, not on the bytes of the scan."""
BUDGET_PIXELS = 12_000_000
"""A smaller picture gets the budget of a picture of this size."""

_SEGMENT = re.compile(rb"\xff[^\x00\x01\xd0-\xd8\xff]")
"""Matches the end of a scan: in a scan, 0x00 (stuffing) or a restart marker follows 0xFF."""
_START_OF_SCAN, _END_OF_IMAGE = 0xDA, 0xD9


def check_scans(body: bytes, width: int, height: int, limits: PictureLimits) -> None:
    """Raise TooManyScans if a JPEG has more than `limits.scans` scans, or exceeds SCAN_BUDGET."""
    budget = SCAN_BUDGET * max(width * height, BUDGET_PIXELS)
    scans = passes = 0
    at = 2
    while (found := _SEGMENT.search(body, at)) and found.start() + 4 < len(body):
        marker, length = struct.unpack_from(">xBH", body, found.start())
        at = found.end() + max(length, 2)
        if marker == _END_OF_IMAGE:
            break
        if marker != _START_OF_SCAN:
            continue
        scans += 1
        passes += body[found.end() + 2]
        if scans > limits.scans:
            raise errors.TooManyScans(
                f"the JPEG has more than {limits.scans} scans, which is the limit",
                limit=limits.scans,
                received=f"more than {limits.scans}",
            )
        if (cost := passes * width * height) > budget:
            raise errors.TooManyScans(
                f"the JPEG's first {scans} scans go over {cost:,} pixels; "
                f"the limit is {budget:,} for {width} x {height}",
                limit=budget,
                received=cost,
            )


BITS, COMPRESSION, COLOURS, SAMPLES, SAMPLE_FORMAT = 258, 259, 262, 277, 339

_COMPRESSIONS = (1, 2, 3, 4, 5, 7, 8, 32773, 32946)
_COLOURS = (0, 1, 2, 3, 5, 6)
_WHITE_IS_ZERO, _YCBCR, _JPEG = 0, 6, 7
MOST_SAMPLES = 6


def check_kind(body: bytes) -> None:
    """Raise UnsupportedMediaType for kinds of TIFF that are not decoded to the right colours."""
    file = io.BytesIO(body)
    page = ImageFileDirectory_v2(body[:8])
    file.seek(page.next)
    page.load(file)
    compression, colours = page.get(COMPRESSION, 1), page.get(COLOURS, 0)
    bits, formats = _numbers(page.get(BITS, 1)), _numbers(page.get(SAMPLE_FORMAT, 1))
    samples = page.get(SAMPLES, 1)
    inverted = colours == _WHITE_IS_ZERO and bits == {16}
    if compression not in _COMPRESSIONS:
        what = f"compression {compression}"
        accepted = "none, CCITT, LZW, JPEG, Deflate, PackBits"
    elif colours not in _COLOURS or (colours == _YCBCR and compression != _JPEG):
        what = f"photometric interpretation {colours} and compression {compression}"
        accepted = "grey, RGB, palette, CMYK, YCbCr (YCbCr in JPEG)"
    elif len(bits) != 1 or not bits <= {1, 2, 4, 8, 16} or formats != {1} or inverted:
        what = f"samples of {_listed(bits)} bits in format {_listed(formats)}"
        accepted = "unsigned whole numbers of 1, 2, 4, 8 or 16 bits, with 0 as black in 16 bits"
    elif not 1 <= samples <= MOST_SAMPLES:
        what, accepted = f"{samples} samples a pixel", f"1 to {MOST_SAMPLES}"
    else:
        return
    raise errors.UnsupportedMediaType(
        f"the file is a TIFF with {what}; accepted are {accepted}",
        limit=accepted,
        received=f"TIFF with {what}",
    )


def _numbers(values: Any) -> set[int]:
    return set(values[:MOST_SAMPLES]) if isinstance(values, tuple) else {values}


def _listed(numbers: set[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))
