"""Decodes uploaded bytes to upright 8-bit sRGB with Pillow. Runs only in a codec process.

OpenCV's decoders crashed on hostile files, so OpenCV only rotates and flips arrays from Pillow.
"""

import io
import os
import re
import struct
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import islice
from typing import Any

import cv2
import numpy as np
from PIL import (  # noqa: F401 - plugins are imported by name: Image.open() must not look for more
    AvifImagePlugin,
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    ImageFile,
    JpegImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)
from PIL.TiffImagePlugin import OPEN_INFO, ImageFileDirectory_v2

from paddlepool.contracts import errors
from paddlepool.tasks.codecs.colours import to_srgb
from paddlepool.tasks.codecs.limits import (
    EXIF_BYTES,
    PictureLimits,
    allow_pixels,
    check_size,
    sniff,
    time_limit,
)
from paddlepool.tasks.codecs.picture import Pixels, bands

PNG_CHUNK_BYTES = 32 << 20
"""Maximum bytes of a profile or text in a PNG, after decompression."""

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


_ON_SIDE = (5, 6, 7, 8)
"""Values of _ORIENTATION for which a picture's sides are swapped."""


def decode(
    body: bytes,
    limits: PictureLimits,
    page: int = 0,
    *,
    on_size: Callable[[int], object] = lambda _: None,
    reduction: Callable[[int, int], int] = lambda _height, _width: 1,
) -> Pixels:
    """Decode the first frame or page and turn it upright: RGBA if it is transparent, else RGB.

    Colours are white where alpha is 0, because invisible colours must not change a result. `page`
    is one of pages_of(), to decode another page of a TIFF. `on_size` is called with the number of
    pixels before they are decoded, if it is allowed. `reduction(height, width)` gets the sides of
    an upright JPEG; they are divided by what it returns (1, 2, 4 or 8), and rounded up. Raises
    InputError if the picture is empty, damaged, above a limit of `limits` or in a format that is
    not accepted, and MemoryError. Ends the process if decoding takes more processor time than
    `limits.seconds` allows for a picture of this size.
    """
    if not body:
        raise errors.FileMissing("the picture has 0 bytes")
    kind = sniff(body, limits.formats)
    try:
        with warnings.catch_warnings(), time_limit(limits):
            warnings.simplefilter("ignore")
            return _decode(body, kind, limits, page, on_size, reduction)
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


def pages_of(body: bytes, limits: PictureLimits, most: int) -> list[int]:
    """Return the numbers, from 0, of a TIFF's directories that are pages; [0] for other formats.

    The first directory is a page. Others are not if they hold a smaller version or a mask of a
    page. Reads no pixels, and no further directory after `most` pages or MOST_DIRECTORIES. Raises
    UnsupportedMediaType as sniff() does, and ImageUnreadable for damaged data. Ends the process if
    this takes too much processor time.
    """
    kind = sniff(body, limits.formats)
    if kind != "TIFF":
        return [0]
    try:
        with warnings.catch_warnings(), time_limit(limits):
            warnings.simplefilter("ignore")
            pages = (
                place
                for place, directory in enumerate(islice(_directories(body), MOST_DIRECTORIES))
                if place == 0 or not directory.get(NEW_SUBFILE_TYPE, 0) & _NO_PAGE
            )
            return list(islice(pages, most))
    except Exception:
        raise errors.ImageUnreadable(f"the {kind} data is damaged or incomplete") from None


def _directories(body: bytes) -> Iterator[ImageFileDirectory_v2]:
    """Yield the directories of a TIFF, each in the same object; end before one is repeated.

    Raises ValueError for an empty directory, and the errors of Pillow for damaged data.
    """
    file, directory = io.BytesIO(body), ImageFileDirectory_v2(body[:8])
    seen: set[int] = set()
    while (offset := directory.next) and offset not in seen:
        seen.add(offset)
        file.seek(offset)
        directory.load(file)  # without an error, and empty, if the offset is beyond the end
        if not len(directory):
            raise ValueError("an empty directory")
        yield directory


def _decode(
    body: bytes,
    kind: str,
    limits: PictureLimits,
    page: int,
    on_size: Callable[[int], object],
    reduction: Callable[[int, int], int],
) -> Pixels:
    # Pillow rejects a picture of more than twice this size before it allocates memory for it.
    Image.MAX_IMAGE_PIXELS = limits.pixels
    # By default, a PNG with a profile or a text of more than 1 MiB counts as damaged.
    PngImagePlugin.MAX_TEXT_CHUNK = PNG_CHUNK_BYTES
    # One core per picture: the other cores have pictures of their own.
    AvifImagePlugin.DEFAULT_MAX_THREADS = 1
    quiet: AbstractContextManager[None] = nullcontext()
    if kind == "TIFF":
        # Pillow's own reader treats the samples of separate planes as bytes.
        TiffImagePlugin.READ_LIBTIFF = check_kind(body, page) == _SEPARATE
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
        if page:
            image.seek(page)
        width, height = image.size
        check_size(width, height, limits)
        allow_pixels(width * height, limits)
        if kind == "JPEG":
            check_scans(body, width, height, limits)
            upright = (width, height) if _orientation(image) in _ON_SIDE else (height, width)
            if (parts := reduction(*upright)) > 1:
                image.draft(None, (width // parts, height // parts))
        on_size(width * height)
        pixels = _read(image, kind, body)
        turn = _TURNS.get(_orientation(image))
    return np.ascontiguousarray(turn(pixels)) if turn else pixels


@contextmanager
def _discard_stderr() -> Iterator[None]:
    """Discard what the block writes to standard error: libtiff writes a line for each damaged row.

    Standard error becomes a pipe without a reader, because a codec process must not open /dev/null.
    """
    saved = os.dup(2)
    unread, nowhere = os.pipe()
    os.close(unread)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nowhere)


def _read(image: ImageFile.ImageFile, kind: str, body: bytes) -> Pixels:
    # Pillow has no transparency for the part of a GIF's canvas that its first frame leaves free.
    shown = image.tile[0].extents if kind == "GIF" else None
    image.load()
    if kind == "JPEG" and _is_cut_short(body, image):
        raise errors.ImageUnreadable("the JPEG data ends before the picture does")
    cover = None
    if shown and "transparency" not in image.info and shown != (0, 0, *image.size):
        cover = np.zeros(image.size[::-1], np.uint8)
        cover[shown[1] : shown[3], shown[0] : shown[2]] = 255
    if kind == "PNG" and "transparency" in image.info:
        cover = _key_of_png(image, body)
    return to_srgb(image, cover)


BIT_DEPTH = 24
"""Offset in a PNG of the byte with the bits per sample."""


def _key_of_png(image: Image.Image, body: bytes) -> Pixels | None:
    """Return the alpha (H, W) of a PNG with a transparent colour, or None if Pillow can apply it.

    The transparent colour has as many bits as the file's samples, but Pillow compares it with
    samples of 8 bits. For grey of 2 to 8 bits and for 8-bit RGB, the colour in `image.info` is
    therefore converted to 8 bits, and None is returned. With 16 bits, the alpha is returned; for
    RGB, the colour is also removed from there.
    """
    key, bits = image.info["transparency"], body[BIT_DEPTH]
    if image.mode == "L":
        most = (1 << bits) - 1
        image.info["transparency"] = (key & most) * 255 // most
    elif image.mode.startswith("I"):
        return np.where(np.asarray(image) == key, np.uint8(0), np.uint8(255))
    elif image.mode == "RGB" and bits == 8:
        image.info["transparency"] = tuple(value & 255 for value in key)
    elif image.mode == "RGB":
        del image.info["transparency"]
        low = _low_bytes(body)
        cover = np.empty(image.size[::-1], np.uint8)
        for rows in bands(image.height, image.width):
            box = (0, rows.start, image.width, rows.stop)
            high, rest = (np.asarray(half.crop(box), np.uint16) for half in (image, low))
            cover[rows] = np.where(((high << 8 | rest) == key).all(axis=2), 0, 255)
        return cover
    return None


def _low_bytes(body: bytes) -> Image.Image:
    """Return the low bytes of a PNG of 16-bit RGB as RGB; Pillow reads only the high bytes."""
    with Image.open(io.BytesIO(body), formats=("PNG",)) as image:
        image.tile = [tile._replace(args="RGB;16L") for tile in image.tile]
        image.load()
        return image


def _is_cut_short(body: bytes, image: Image.Image) -> bool:
    """Return whether data is missing before the end marker of a JPEG; False without the marker.

    libjpeg fills the missing part with mid-grey. If the bottom right corner is mid-grey, the JPEG
    is decoded again with extra bytes before the end marker: they change only an incomplete picture.
    """
    end = body.rfind(b"\xff\xd9")
    width, height = image.size
    scale, *_ = getattr(image, "decoderconfig", ()) or (1,)  # the divisor of its sides
    side = max(1, 8 // scale)
    corner = np.asarray(image.crop((max(0, width - side), max(0, height - side), width, height)))
    if end == -1 or corner.min() < 127 or corner.max() > 128:  # Pillow inverts CMYK
        return False
    longer = body[:end] + bytes(range(1, 128)) + body[end:]
    with Image.open(io.BytesIO(longer), formats=("JPEG",)) as again:
        again.draft(None, (again.width // scale, again.height // scale))
        boxes = ((0, rows.start, width, rows.stop) for rows in bands(height, width))
        return any(image.crop(box).tobytes() != again.crop(box).tobytes() for box in boxes)


def _orientation(image: Image.Image) -> int:
    """Return the EXIF orientation; 1 (upright) if it is missing or cannot be read.

    Metadata of more than EXIF_BYTES is not read.
    """
    if any(len(image.info.get(name) or b"") > EXIF_BYTES for name in _METADATA):
        return 1
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except Exception:
        return 1


SCAN_BUDGET = 48
"""Maximum passes over the whole picture. A scan makes one pass for each of its components. A
progressive JPEG with libjpeg's default scans takes 14 passes, with mozjpeg's longest list of scans
about twice as many. Passes are limited because the time that a scan takes depends on the number of
pixels, not on the bytes of the scan."""
BUDGET_PIXELS = 12_000_000
"""A picture with fewer pixels may have more passes: SCAN_BUDGET * BUDGET_PIXELS / its pixels."""

_SEGMENT = re.compile(rb"\xff[^\x00\x01\xd0-\xd8\xff]")
"""Matches the end of a scan: in a scan, 0x00 (stuffing) or a restart marker follows 0xFF."""
_START_OF_SCAN, _END_OF_IMAGE = 0xDA, 0xD9


def check_scans(body: bytes, width: int, height: int, limits: PictureLimits) -> None:
    """Raise TooManyScans if a JPEG has more than `limits.scans` scans, or too many passes.

    SCAN_BUDGET and BUDGET_PIXELS limit the passes.
    """
    budget = SCAN_BUDGET * max(width * height, BUDGET_PIXELS)
    scans = passes = 0
    at = 2
    while (match := _SEGMENT.search(body, at)) and match.start() + 4 < len(body):
        marker, length = struct.unpack_from(">xBH", body, match.start())
        at = match.end() + max(length, 2)
        if marker == _END_OF_IMAGE:
            break
        if marker != _START_OF_SCAN:
            continue
        scans += 1
        passes += body[match.end() + 2]
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


NEW_SUBFILE_TYPE, _NO_PAGE = 254, 1 | 4
MOST_DIRECTORIES = 1_000
BITS, COMPRESSION, COLOURS, SAMPLES, SAMPLE_FORMAT = 258, 259, 262, 277, 339
_FILL_ORDER, _PLANES, _EXTRA_SAMPLES = 266, 284, 338

_COMPRESSIONS = (1, 2, 3, 4, 5, 7, 8, 32773, 32946)
_COLOURS = (0, 1, 2, 3, 5, 6)
_WHITE_IS_ZERO, _YCBCR, _JPEG, _SEPARATE = 0, 6, 7, 2
MOST_SAMPLES = 6


def check_kind(body: bytes, place: int = 0) -> int:
    """Return how the samples of a TIFF's page are stored: 1 pixel by pixel, 2 in separate planes.

    `place` is the number of the page's directory. Raises UnsupportedMediaType for kinds of TIFF
    that Pillow does not decode to the right colours.
    """
    page = next(islice(_directories(body), place, None))
    compression, colours = page.get(COMPRESSION, 1), page.get(COLOURS, 0)
    bits, formats = _numbers(page.get(BITS, 1)), _numbers(page.get(SAMPLE_FORMAT, 1))
    samples, planes = page.get(SAMPLES, 1), page.get(_PLANES, 1)
    extra = page.get(_EXTRA_SAMPLES, ())
    inverted = colours == _WHITE_IS_ZERO and bits == {16}
    if compression not in _COMPRESSIONS:
        what = f"compression {compression}"
        accepted = "none, CCITT, LZW, JPEG, Deflate, PackBits"
    elif colours not in _COLOURS or (colours == _YCBCR and compression != _JPEG):
        what = f"photometric interpretation {colours} and compression {compression}"
        accepted = "grey, RGB, palette, CMYK, YCbCr (YCbCr in JPEG)"
    elif len(bits) != 1 or not bits <= {1, 2, 4, 8, 16} or formats != {1}:
        what = f"samples of {_listed(bits)} bits in format {_listed(formats)}"
        accepted = "unsigned whole numbers of 1, 2, 4, 8 or 16 bits"
    elif inverted:
        what, accepted = "16 bits in which 0 is white", "16 bits in which 0 is black"
    elif not 1 <= samples <= MOST_SAMPLES:
        what, accepted = f"{samples} samples a pixel", f"1 to {MOST_SAMPLES}"
    elif not _is_known(
        body[:2], colours, page.get(_FILL_ORDER, 1), (*bits,) * samples, extra, planes
    ):
        what = (
            f"{samples} samples of {_listed(bits)} bits, planar configuration {planes}, "
            f"photometric interpretation {colours} and extra samples {_listed(_numbers(extra))}"
        )
        accepted = "alpha in RGB, and beside grey or palette indices of 8 bits in the same plane"
    else:
        return int(planes)
    raise errors.UnsupportedMediaType(
        f"the file is a TIFF with {what}; accepted are {accepted}",
        limit=accepted,
        received=f"TIFF with {what}",
    )


def _is_known(
    order: bytes, colours: int, fill: int, bits: tuple[int, ...], extra: Any, planes: int
) -> bool:
    """Return whether Pillow decodes this kind of TIFF to the right pixels."""
    extra = extra if isinstance(extra, tuple) else (extra,)
    if planes == _SEPARATE and extra and not any(extra):  # Pillow ignores unspecified extra planes
        bits, extra = bits[: -len(extra)], ()
    mode, _ = OPEN_INFO.get((order, colours, (1,), fill, bits, extra), ("", ""))
    # Pillow loses the alpha of grey if it is in a plane of its own.
    return mode not in (("", "LA", "La", "PA") if planes == _SEPARATE else ("",))


def _numbers(values: Any) -> set[int]:
    return set(values[:MOST_SAMPLES]) if isinstance(values, tuple) else {values}


def _listed(numbers: set[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))
