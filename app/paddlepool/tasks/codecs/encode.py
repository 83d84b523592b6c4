"""Writes arrays of pixels as PNG, WebP or JPEG files without metadata.

The server runs it only in codec processes.
"""

import io
import struct
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain

import cv2
import numpy as np
from isal import isal_zlib
from PIL import Image

from paddlepool.contracts.errors import BackendError, OutputTooLarge
from paddlepool.tasks.codecs.limits import WEBP_PIXELS, WEBP_SIDE, PictureLimits
from paddlepool.tasks.codecs.picture import Pixels

WEBP_QUALITY = 90
LOSSLESS_EFFORT = 20
"""Pillow's `quality` of a lossless WebP: the effort, 0 to 100."""
JPEG_QUALITY = 90
WEBP_METHOD = 0
"""libwebp's effort, 0 to 6. Method 1 takes twice as long and makes files 1/8 to 1/3 smaller."""


def check_output(
    width: int, height: int, *, format: str, grey: bool, limits: PictureLimits
) -> None:
    """Raise OutputTooLarge if a result of this size is too large for its format.

    The limits are `limits.png_pixels` for a PNG, WEBP_PIXELS and WEBP_SIDE for a WebP, and none for
    a JPEG. Only WEBP_SIDE applies to a grey result.
    """
    pixels = width * height
    most = {"png": limits.png_pixels, "webp": WEBP_PIXELS}.get(format)
    if most is not None and not grey and pixels > most:
        raise OutputTooLarge(
            f"a {format} in colour of {width} x {height} = {pixels:,} pixels is over the limit of "
            f"{most:,}; use {'format=webp, ' if pixels <= WEBP_PIXELS else ''}"
            "output=composite with format=jpg, output=mask or size=preview",
            limit=most,
            received=pixels,
        )
    if format == "webp" and max(width, height) > WEBP_SIDE:
        raise OutputTooLarge(
            f"WebP holds {WEBP_SIDE:,} pixels a side, the result is {width} x {height}; "
            "use format=png, or output=composite with format=jpg",
            limit=WEBP_SIDE,
            received=max(width, height),
        )


def encode(pixels: Pixels, *, format: str, ready: Iterable[int] = ()) -> Pixels:
    """Encode a grey (H, W), RGB (H, W, 3) or RGBA (H, W, 4) array; return the file's bytes (N,).

    `format` is `png`, `webp` or, without alpha, `jpg`. A grey WebP of up to WEBP_PIXELS, usually a
    mask, is lossless. `ready` may be an iterator that fills in the pixels from top to bottom, and
    yields the number of rows that are filled in. Raises OutputTooLarge if WebP cannot hold so much
    detail, MemoryError, and BackendError if OpenCV cannot encode a JPEG.
    """
    if format == "png":
        return _png(pixels, ready)
    deque(ready, maxlen=0)
    return {"webp": _webp, "jpg": _jpg}[format](pixels)


def indexed_png(labels: Pixels, palette: bytes) -> Pixels:
    """Encode labels (H, W) as a PNG with a palette; return the file's bytes (N,).

    `palette` has red, green and blue of 256 colours, in 768 bytes.
    """
    image = Image.fromarray(labels)
    image.putpalette(palette)
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=LEVEL)
    return np.frombuffer(file.getbuffer(), np.uint8)


def _webp(pixels: Pixels) -> Pixels:
    file = io.BytesIO()
    lossless = pixels.ndim == 2 and pixels.size <= WEBP_PIXELS  # takes 16 bytes for each pixel
    quality = LOSSLESS_EFFORT if lossless else WEBP_QUALITY
    try:
        Image.fromarray(pixels).save(
            file, "WEBP", lossless=lossless, quality=quality, method=WEBP_METHOD
        )
    except ValueError as error:
        if str(error) == "encoding error 1":  # Pillow's text when libwebp is out of memory
            raise MemoryError from None
        if str(error) == "encoding error 6":  # the part of the file that has a limit is full
            height, width = pixels.shape[:2]
            raise OutputTooLarge(
                f"WebP cannot hold as much detail as this result of {width} x {height} has; "
                "use format=png, output=composite with format=jpg, or a smaller size"
            ) from None
        raise
    return np.frombuffer(file.getbuffer(), np.uint8)


def _jpg(pixels: Pixels) -> Pixels:
    if pixels.ndim == 3:
        pixels = cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR)
    done, file = cv2.imencode(".jpg", pixels, (cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY))
    if not done:
        raise BackendError(f"OpenCV could not encode a JPEG of shape {pixels.shape}")
    return file.reshape(-1)


SIGNATURE = b"\x89PNG\r\n\x1a\n"
COLOUR_TYPES = {1: 0, 3: 2, 4: 6}
"""PNG's colour type by the number of channels."""
ABOVE = 2  # the filter that subtracts the row above
LEVEL = 1
"""ISA-L's effort, 0 to 3. Level 0 makes photographs a sixth larger; level 3 only takes longer."""
BAND_BYTES = 1 << 18
ZLIB_HEADER = b"\x78\x01"
LARGE_PIXELS = 4_000_000
"""From this number of pixels on, two threads deflate a picture. A smaller one takes one thread a
few milliseconds."""
PART_PIXELS = 500_000
"""How many pixels of a large picture a thread deflates at once."""


def _png(pixels: Pixels, ready: Iterable[int]) -> Pixels:
    """Encode a PNG four times as fast as libpng with zlib (docs/decisions/0027-png-by-isa-l.md).

    Each row is predicted from the row above it (filter 2 of https://www.w3.org/TR/png-3/) and
    deflated by ISA-L, in bands that stay in the processor's cache. A second thread deflates parts
    of a large picture (docs/decisions/0076-large-png-in-two-threads.md).
    """
    height, width = pixels.shape[:2]
    rows = pixels.reshape(height, -1)
    length = rows.shape[1]
    header = struct.pack(">IIBBBBB", width, height, 8, COLOUR_TYPES[length // width], 0, 0, 0)
    chunks = [SIGNATURE, *_chunk(b"IHDR", header), *_chunk(b"IDAT", ZLIB_HEADER)]
    if height * width < LARGE_PIXELS:
        deque(ready, maxlen=0)
        parts = [_deflated(rows, 0, height)]
    else:
        parts = _deflated_in_two_threads(rows, ready, -(-PART_PIXELS // width))
    checksum = 1
    for data, adler, size in parts:
        chunks += data
        checksum = _adler32_of_both(checksum, adler, size)
    chunks += _chunk(b"IDAT", struct.pack(">I", checksum))
    chunks += _chunk(b"IEND", b"")
    return np.frombuffer(b"".join(chunks), np.uint8)


Part = tuple[list[bytes], int, int]
"""Chunks of deflated rows, and the Adler-32 and the number of the bytes that they were made of."""


def _deflated_in_two_threads(rows: Pixels, ready: Iterable[int], step: int) -> list[Part]:
    """Deflate parts of `step` rows: from the top in another thread, while `ready` is iterated.

    Then this thread deflates parts, too, from the bottom.
    """
    height = len(rows)
    parts: list[Future[Part]] = []
    with ThreadPoolExecutor(1) as second:
        for bottom in chain(ready, (height,)):
            while (top := len(parts) * step) < height and min(height, top + step) <= bottom:
                parts.append(second.submit(_deflated, rows, top, min(height, top + step)))
        lower: deque[Part] = deque()
        while parts and parts[-1].cancel():
            parts.pop()
            top = len(parts) * step
            lower.appendleft(_deflated(rows, top, min(height, top + step)))
    return [*(part.result() for part in parts), *lower]


def _deflated(rows: Pixels, top: int, bottom: int) -> Part:
    """Filter and deflate the rows from `top` to before `bottom`.

    The last rows of the picture end the stream; others end at a byte, so that more can follow.
    """
    chunks: list[bytes] = []
    length = rows.shape[1]
    step = max(1, BAND_BYTES // length)
    band = np.empty((min(step, bottom - top), 1 + length), np.uint8)
    band[:, 0] = ABOVE
    deflater = isal_zlib.compressobj(LEVEL, isal_zlib.DEFLATED, -isal_zlib.MAX_WBITS)
    adler = 1
    for first in range(top, bottom, step):
        after = min(bottom, first + step)
        filtered = band[: after - first]
        if first:
            np.subtract(rows[first:after], rows[first - 1 : after - 1], out=filtered[:, 1:])
        else:  # the format defines the row above the first as zeros
            filtered[0, 1:] = rows[0]
            np.subtract(rows[1:after], rows[: after - 1], out=filtered[1:, 1:])
        adler = isal_zlib.adler32(filtered, adler)
        if data := deflater.compress(filtered):
            chunks += _chunk(b"IDAT", data)
    ends = bottom == len(rows)
    data = deflater.flush(isal_zlib.Z_FINISH if ends else isal_zlib.Z_SYNC_FLUSH)
    return [*chunks, *_chunk(b"IDAT", data)], adler, (bottom - top) * (1 + length)


def _adler32_of_both(first: int, second: int, length: int) -> int:
    """Return the Adler-32 (RFC 1950) of two joined parts from those of the parts.

    The second part has `length` bytes.
    """
    low = first % 65536 + second % 65536 - 1
    high = (first >> 16) + (second >> 16) + length * (first % 65536 - 1)
    return (high % 65521 << 16) + low % 65521


def _chunk(kind: bytes, data: bytes) -> tuple[bytes, bytes, bytes]:
    checksum = isal_zlib.crc32(data, isal_zlib.crc32(kind))
    return struct.pack(">I", len(data)) + kind, data, struct.pack(">I", checksum)
