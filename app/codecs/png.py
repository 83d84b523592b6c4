"""Arrays to PNG files, four times as fast as libpng over zlib: docs/decisions/0027.

The rows are predicted from those above them (filter 2 of the format) and deflated by ISA-L, a band
at a time, so that a band stays in the processor's cache and no second picture is held.
https://www.w3.org/TR/png-3/
"""

from __future__ import annotations

import struct

import numpy as np
from isal import isal_zlib

from app.codecs.picture import Pixels

SIGNATURE = b"\x89PNG\r\n\x1a\n"
COLOUR_TYPES = {1: 0, 3: 2, 4: 6}
"""The format's number for grey, RGB and RGBA, by the number of channels."""
ABOVE = 2
LEVEL = 1
"""Of 0 to 3. On photographs 0 makes files a sixth larger in the same time; 3 takes half as long
again and saves nothing."""
BAND_BYTES = 1 << 18


def encode_png(pixels: Pixels) -> Pixels:
    """One-dimensional file bytes of a grey (H, W), RGB (H, W, 3) or RGBA (H, W, 4) uint8 array."""
    height, width = pixels.shape[:2]
    channels = pixels.shape[2] if pixels.ndim == 3 else 1
    header = struct.pack(">IIBBBBB", width, height, 8, COLOUR_TYPES[channels], 0, 0, 0)
    chunks = [SIGNATURE, *_chunk(b"IHDR", header)]
    for data in _deflated(pixels.reshape(height, width * channels)):
        chunks += _chunk(b"IDAT", data)
    chunks += _chunk(b"IEND", b"")
    return np.frombuffer(b"".join(chunks), np.uint8)


def _deflated(rows: Pixels) -> list[bytes]:
    """The zlib stream of filtered rows, in pieces: `rows` is (H, bytes of a row)."""
    height, length = rows.shape
    step = max(1, BAND_BYTES // length)
    band = np.empty((min(step, height), 1 + length), np.uint8)
    band[:, 0] = ABOVE
    deflater = isal_zlib.compressobj(LEVEL)
    pieces = []
    for top in range(0, height, step):
        bottom = min(height, top + step)
        filtered = band[: bottom - top]
        if top:
            np.subtract(rows[top:bottom], rows[top - 1 : bottom - 1], out=filtered[:, 1:])
        else:  # above the first row there are zeros
            filtered[0, 1:] = rows[0]
            np.subtract(rows[1:bottom], rows[: bottom - 1], out=filtered[1:, 1:])
        pieces.append(deflater.compress(filtered))
    pieces.append(deflater.flush())
    return [piece for piece in pieces if piece]


def _chunk(kind: bytes, data: bytes) -> tuple[bytes, bytes, bytes]:
    checksum = isal_zlib.crc32(data, isal_zlib.crc32(kind))
    return struct.pack(">I", len(data)) + kind, data, struct.pack(">I", checksum)
