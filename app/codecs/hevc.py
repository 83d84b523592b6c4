"""The size and the number of the pictures in HEVC data, read before any decoder runs.

ITU-T H.265 (7.3.1 NAL units, 7.3.2.2 sequence parameter set), ISO/IEC 14496-15 8.3 (`hvcC`)
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from app.codecs.bits import Bits
from app.codecs.limits import too_many

UNITS = 65_536
"""Of all items of a file: a grid of 50 megapixels in tiles of 64 x 64 has four for each."""
LARGEST_BLOCK = 64
"""The coded size is one of whole blocks; a window cuts it to the picture's."""

_PICTURE_TYPES, _PARAMETERS = 32, 33
_HEADER_BYTES = 512
_ARRAYS = 22
"""Where a configuration has its parameter sets."""


class HevcFrames:
    """Goes through the HEVC data of a file's items, one after the other."""

    def __init__(self) -> None:
        self._units = 0

    def size(self, config: bytes) -> tuple[int, int]:
        """The largest coded width and height in an `hvcC`. Raises as `of` does."""
        return self._walk(_units_of_config(config))[1:]

    def of(self, data: bytes, sizes: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """Coded width and height of every picture: those of its configurations, or larger ones in
        the data. Raises ImageUnreadable for too many units, struct.error and IndexError where
        something ends."""
        pictures, width, height = self._walk(_units_of_item(data))
        for wide, high in sizes:
            width, height = max(width, wide), max(height, high)
        return [(width, height)] * pictures

    def _walk(self, units: Iterator[bytes]) -> tuple[int, int, int]:
        pictures = width = height = 0
        for unit in units:
            self._units += 1
            if self._units > UNITS:
                raise too_many("HEIC", "HEVC units", UNITS)
            if len(unit) < 3 or unit[0] & 1 or unit[1] >> 3:
                continue  # of another layer
            kind = unit[0] >> 1 & 63
            if kind < _PICTURE_TYPES:
                pictures += unit[2] >> 7  # its first slice
            elif kind == _PARAMETERS:
                wide, high = _size(unit)
                width, height = max(width, wide), max(height, high)
        return pictures, width, height


def _units_of_config(config: bytes) -> Iterator[bytes]:
    at = _ARRAYS + 1
    for _ in range(config[_ARRAYS]):
        (count,) = struct.unpack_from(">H", config, at + 1)
        at += 3
        for _ in range(count):
            (size,) = struct.unpack_from(">H", config, at)
            yield config[at + 2 : at + 2 + min(size, _HEADER_BYTES)]
            at += 2 + size


def _units_of_item(data: bytes) -> Iterator[bytes]:
    """Each has its length before it, in four bytes, as libheif reads it whatever is declared."""
    at = 0
    while at + 4 <= len(data):
        (size,) = struct.unpack_from(">L", data, at)
        yield data[at + 4 : at + 4 + min(size, _HEADER_BYTES)]
        at += 4 + size


def _size(unit: bytes) -> tuple[int, int]:
    """Of a sequence parameter set."""
    bits = Bits(unit[2:].replace(b"\0\0\3", b"\0\0"))
    bits.read(4)
    layers = bits.read(3)
    bits.read(1 + 96)  # profile and level
    present = [(bits.read(1), bits.read(1)) for _ in range(layers)]
    bits.read(2 * (8 - layers) if layers else 0)
    for profile, level in present:
        bits.read(88 * profile + 8 * level)
    bits.variable()
    if bits.variable() == 3:
        bits.read(1)  # chroma in planes of its own
    return bits.variable(), bits.variable()
