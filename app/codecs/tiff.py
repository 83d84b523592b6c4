"""What a TIFF says of its first page, read before any decoder runs.

TIFF is a family of formats. Those that Pillow and libtiff read into the right colours are let
through, the others refused by name; and what would have a decoder work or allocate without end is
refused here: sizes, tiles and strips, what they hold, and the chain of pages, of which only the
first is read.
"""

from __future__ import annotations

import struct

from app.codecs.jpeg_header import walk_parts
from app.codecs.limits import PictureLimits
from app.contracts.errors import ImageUnreadable, UnsupportedMediaType

WIDTH, HEIGHT, BITS, COMPRESSION, COLOURS = 256, 257, 258, 259, 262
STRIPS, SAMPLES, ROWS_PER_STRIP, PLANES = 273, 277, 278, 284
STRIP_BYTES, TILE_BYTES = 279, 325
TILE_WIDTH, TILE_HEIGHT, TILES, SAMPLE_FORMAT = 322, 323, 324, 339

_COMPRESSIONS = {1: "none", 2: "CCITT", 3: "CCITT", 4: "CCITT", 5: "LZW", 7: "JPEG"} | {
    8: "Deflate",
    32946: "Deflate",
    32773: "PackBits",
}
_COLOURS = {0: "grey", 1: "grey", 2: "RGB", 3: "palette", 5: "CMYK", 6: "YCbCr"}
_RAW = 1
_WHITE_IS_ZERO, _YCBCR, _JPEG = 0, 6, 7
_OF_TILES = (TILE_WIDTH, TILE_HEIGHT, TILES, TILE_BYTES)
_SIZES = {1: "B", 3: "H", 4: "L"}
"""Types of whole numbers: bytes, shorts and longs."""
_FRACTIONS = (5, 10)
MOST_FRACTIONS = 1_024
"""Pillow makes an object of each, four millionths of a second; colour matrices have a dozen."""
_ENTRY_BYTES = 12
_LEAST_TILE = 16
_LARGEST_BLOCK = 16
MOST_SAMPLES = 6
PARTS = 65_536
"""Strips or tiles: as many as 16,384 rows of four planes, each row by itself, which cost half a
second in Pillow. Files have a few hundred."""
JPEG_PARTS = 16_384
"""Of JPEGs, which are walked here: 50 megapixels in tiles of 64 x 64 are 12,207."""


def tiff_size(body: bytes, limits: PictureLimits) -> tuple[int, int]:
    """Width and height of the first page. Raises UnsupportedMediaType for a kind of TIFF that is
    not read, ImageUnreadable for one that is damaged, and struct.error where the file ends."""
    page = _Page(body)
    compression, colours = page.number(COMPRESSION, 1), page.number(COLOURS, 0)
    if compression not in _COMPRESSIONS:
        raise _unsupported(f"compression {compression}", ", ".join(_names(_COMPRESSIONS)))
    if colours not in _COLOURS or (colours == _YCBCR and compression != _JPEG):
        raise _unsupported(
            f"photometric interpretation {colours} and compression {compression}",
            ", ".join(_names(_COLOURS)) + " (YCbCr in JPEG)",
        )
    samples = page.number(SAMPLES, 1)
    bits, formats = set(page.numbers(BITS, [1])), set(page.numbers(SAMPLE_FORMAT, [1]))
    inverted = colours == _WHITE_IS_ZERO and bits == {16}
    if len(bits) != 1 or not bits <= {1, 2, 4, 8, 16} or formats != {1} or inverted:
        raise _unsupported(
            f"samples of {_listed(bits)} bits in format {_listed(formats)}",
            "unsigned whole numbers of 1, 2, 4, 8 or 16 bits, 0 being black in those of 16",
        )
    if not 1 <= samples <= MOST_SAMPLES:
        raise _unsupported(f"{samples} samples a pixel", f"1 to {MOST_SAMPLES}")
    width, height = page.number(WIDTH, 0), page.number(HEIGHT, 0)
    if width and height:
        _check_parts(page, width, height, samples, limits)
    return width, height


def first_page(body: bytes) -> bytes:
    """The file with nothing behind its first page: decoders follow the chain to count the pages,
    which may be many, or go round in a circle."""
    alone = bytearray(body)
    end = _Page(body).end
    alone[end : end + 4] = bytes(4)
    return bytes(alone)


class _Page:
    """The first directory of a file: its entries by tag, and where it ends."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self._order = "<" if body[:2] == b"II" else ">"
        (start,) = struct.unpack_from(f"{self._order}L", body, 4)
        (count,) = struct.unpack_from(f"{self._order}H", body, start)
        self.end = start + 2 + count * _ENTRY_BYTES
        if self.end + 4 > len(body):
            raise ImageUnreadable("the TIFF's directory does not lie within the file")
        self._entries: dict[int, tuple[int, int, int]] = {}
        for at in range(start + 2, self.end, _ENTRY_BYTES):
            tag, kind, number = struct.unpack_from(f"{self._order}HHL", body, at)
            if kind in _FRACTIONS and number > MOST_FRACTIONS:
                raise ImageUnreadable(
                    f"an entry of the TIFF's directory has {number:,} fractions; "
                    f"it may have {MOST_FRACTIONS:,}",
                    limit=MOST_FRACTIONS,
                    received=number,
                )
            if tag in self._entries:
                # Readers differ in which one they take.
                raise ImageUnreadable("the TIFF's directory has an entry twice")
            self._entries[tag] = (kind, number, at + 8)

    def has(self, *tags: int) -> bool:
        return any(tag in self._entries for tag in tags)

    def count(self, tag: int) -> int:
        return self._entries[tag][1] if tag in self._entries else 0

    def number(self, tag: int, default: int) -> int:
        return self.numbers(tag, [default])[0]

    def numbers(self, tag: int, default: list[int], *, most: int = MOST_SAMPLES) -> list[int]:
        """At most as many as a pixel may have samples, or `most`."""
        if tag not in self._entries:
            return default
        kind, count, at = self._entries[tag]
        if kind not in _SIZES or count < 1:
            raise ImageUnreadable("a size in the TIFF's directory is no whole number")
        form = f"{self._order}{min(count, most)}{_SIZES[kind]}"
        if count * struct.calcsize(f"={_SIZES[kind]}") > 4:
            (at,) = struct.unpack_from(f"{self._order}L", self.body, at)
        return list(struct.unpack_from(form, self.body, at))


def _check_parts(page: _Page, width: int, height: int, samples: int, limits: PictureLimits) -> None:
    """Strips or tiles: no more than the picture has room for, and none that is larger than it may
    be itself."""
    planes = samples if page.number(PLANES, 1) == 2 else 1
    if page.has(*_OF_TILES):
        if page.has(STRIPS, STRIP_BYTES):
            # Readers differ in which they take.
            raise ImageUnreadable("the TIFF has both strips and tiles")
        offsets, lengths = TILES, TILE_BYTES
        wide, high = page.number(TILE_WIDTH, 0), page.number(TILE_HEIGHT, 0)
        if min(wide, high) < _LEAST_TILE or wide * high > limits.pixels:
            raise ImageUnreadable(
                f"the TIFF's tiles are {wide} x {high} pixels; "
                f"they have {_LEAST_TILE} a side or more and {limits.pixels:,} at most"
            )
        room = -(-width // wide) * -(-height // high)
        if room * wide * high > limits.pixels + width * height:
            raise ImageUnreadable(
                f"the TIFF's tiles reach beyond its {width} x {height} pixels by more than "
                f"{limits.pixels:,}"
            )
    else:
        offsets, lengths = STRIPS, STRIP_BYTES
        wide, high = width, max(1, min(page.number(ROWS_PER_STRIP, height), height))
        room = -(-height // high)
    compression = page.number(COMPRESSION, _RAW)
    most = min(room * planes, JPEG_PARTS if compression == _JPEG else PARTS)
    if not 1 <= page.count(offsets) <= most:
        raise ImageUnreadable(
            f"the TIFF has {page.count(offsets):,} strips or tiles; {room * planes:,} make the "
            f"picture, and it may have {most:,}"
        )
    if compression == _RAW:
        return  # Pillow takes as many bytes as there are pixels, whatever their lengths say.
    parts = _parts(page, offsets, lengths)
    if compression == _JPEG:
        jpeg_wide, jpeg_high = walk_parts(parts, width * height, limits)
        # The blocks at its edge may reach beyond the picture.
        if jpeg_wide >= wide + _LARGEST_BLOCK or jpeg_high >= high + _LARGEST_BLOCK:
            raise ImageUnreadable(
                f"a JPEG in the TIFF is {jpeg_wide} x {jpeg_high} pixels; "
                f"its strips or tiles are {wide} x {high}"
            )


def _parts(page: _Page, offsets: int, lengths: int) -> list[bytes]:
    """The bytes of all strips or tiles, which are no more than those of the file: a decoder goes
    over all of each, though they may lie in the same place."""
    found, available = page.count(offsets), len(page.body)
    starts = page.numbers(offsets, [], most=found)
    # Where the only one has no sound length, libtiff takes all that is there.
    sizes = page.numbers(lengths, [], most=found) if found > 1 else [available]
    if len(sizes) < found or sum(sizes) > available:
        raise ImageUnreadable(
            f"the TIFF's {found:,} strips or tiles have {sum(sizes):,} bytes in {len(sizes):,} "
            f"lengths; the file has {available:,}"
        )
    return [page.body[at : at + size] for at, size in zip(starts, sizes, strict=True)]


def _unsupported(what: str, accepted: str) -> UnsupportedMediaType:
    return UnsupportedMediaType(
        f"the file is a TIFF with {what}; accepted are {accepted}",
        limit=accepted,
        received=f"TIFF with {what}",
    )


def _names(kinds: dict[int, str]) -> list[str]:
    return list(dict.fromkeys(kinds.values()))


def _listed(numbers: set[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))
