"""What an AVIF or HEIC file holds, read before any decoder runs.

Both are ISO base media files (ISO/IEC 14496-12) that hold pictures as items (ISO/IEC 23008-12): a
property `ispe` gives the size of each, the whole, its tiles and its thumbnails. A decoder goes by
the coded data instead, which may hold more frames, and larger ones: these are counted, too.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Container, Iterator

from app.codecs.av1 import Av1Frames
from app.codecs.hevc import LARGEST_BLOCK, HevcFrames
from app.codecs.limits import EXIF_BYTES, too_many
from app.contracts.errors import ImageUnreadable

ENTRIES = 262_144
"""Boxes, and entries of boxes. A grid of 50 megapixels in tiles of 64 x 64 has ten for each."""
LAYERS = 4
"""Frames of one item, as many as it may have of rising quality; almost all have one."""
PICTURES = 3
"""Frames of all items, in pixels of the picture itself: colours, alpha, and one more."""
FREE_PIXELS = 12_000_000
"""Smaller pictures may have as many pixels in frames as one of this size."""

_FROM_FILE, _FROM_IDAT = 0, 1
_DERIVED = (b"grid", b"iovl", b"iden")
_ALONE = frozenset({b"meta", b"iprp", b"ipco", b"iinf", b"iloc", b"idat", b"pitm", b"iref"})
Part = tuple[int, int]
"""Where something begins and ends in the file."""


def check_items(body: bytes, kind: str) -> tuple[int, int]:
    """Width and height of the largest picture in the file.

    Raises ImageUnreadable when no size is there, or more is coded than the sizes say; struct.error
    and IndexError where the file ends.
    """
    file = _File(body, kind)
    width, height = max(file.sizes.values(), key=lambda size: size[0] * size[1])
    pixels = file.pixels(file.primary)
    _check_derived(file, pixels + FREE_PIXELS)
    _check_frames(file, PICTURES * max(pixels, FREE_PIXELS))
    _check_exif(file)
    return width, height


def still_picture(body: bytes) -> bytes:
    """The AVIF with the brand of a still picture: by that of a sequence, a decoder would take the
    first frame of its track and not the items that check_items has counted."""
    return body[:8] + b"avif" + body[12:]


def _check_derived(file: _File, budget: int) -> None:
    """Pictures that are put together from others: a decoder opens each as often as it is named."""
    derived = {item for item in file.parts if file.kinds.get(item) in _DERIVED}
    for item in derived:
        parts = file.parts[item]
        if len(parts) > 1 and not derived.isdisjoint(parts):
            raise ImageUnreadable("a picture of the file is made of such as are made of others")
        cost = sum(map(file.pixels, parts))
        if cost > budget:
            raise ImageUnreadable(
                f"a picture of the file is made of {cost:,} pixels; the limit is {budget:,}",
                limit=budget,
                received=cost,
            )


def _check_frames(file: _File, budget: int) -> None:
    av1, hevc, cost, taken = Av1Frames(), HevcFrames(), 0, 0
    configs = {number: hevc.size(body) for number, body in file.configs.items()}
    for item, kind in file.kinds.items():
        if kind not in (b"av01", b"hvc1"):
            continue
        taken += file.length(item)
        if taken > len(file.body):
            raise ImageUnreadable("the items of the file have more bytes than the file")
        data = file.data(item)
        if kind == b"av01":
            most, room, frames = LAYERS, 1, av1.of(data)
            cost += sum(width * height for width, height in frames)
        else:
            coded = [configs[number] for number in file.properties(item) if number in configs]
            most, room, frames = 1, LARGEST_BLOCK, hevc.of(data, coded)
        sizes = file.sizes_of(item)
        for width, height in frames:
            if not sizes or any(
                width >= wide + room or height >= high + room for wide, high in sizes
            ):
                raise ImageUnreadable(
                    f"a frame of the file is {width} x {height} pixels, larger than its picture"
                )
        if len(frames) > most or cost > budget:
            raise ImageUnreadable(
                f"the file has {len(frames):,} frames in an item, {cost:,} pixels so far; "
                f"the limits are {most} and {budget:,}",
                limit=budget,
                received=cost,
            )


def _check_exif(file: _File) -> None:
    """Pillow reads it while it opens the file, to tell how the picture is turned."""
    length = sum(file.length(item) for item, kind in file.kinds.items() if kind == b"Exif")
    if length > EXIF_BYTES:
        raise ImageUnreadable(
            f"the file has {length:,} bytes of EXIF; the limit is {EXIF_BYTES:,}",
            limit=EXIF_BYTES,
            received=length,
        )


class _File:
    """Its items: their kinds, what they are made of, their places in the file and the numbers of
    their properties; and the sizes and HEVC configurations among the properties, by number."""

    def __init__(self, body: bytes, kind: str) -> None:
        self.body = body
        self.kinds: dict[int, bytes] = {}
        self.sizes: dict[int, tuple[int, int]] = {}
        self.parts: dict[int, list[int]] = defaultdict(list)
        self.primary = 0
        self.configs: dict[int, bytes] = {}
        self._properties: dict[int, tuple[int, ...]] = {}
        self._places: dict[int, list[Part]] = {}
        self._entries = 0
        found: dict[bytes, Part] = {}
        for name, start, end in self._boxes(0, len(body)):
            if name == b"meta":
                # It has a version and flags before what is in it.
                for inner, *part in self._boxes(start + 4, end):
                    self._once(found, inner, (part[0], part[1]))
                self._once(found, name, (start, end))
        for name, start, end in self._boxes(*found.get(b"iprp", (0, 0))):
            if name == b"ipma":
                self._read_properties(start)
            else:
                self._once(found, name, (start, end))
        for number, (name, start, end) in enumerate(self._boxes(*found.get(b"ipco", (0, 0))), 1):
            if name == b"ispe":
                width, height = struct.unpack_from(">LL", body, start + 4)
                self.sizes[number] = width, height
            elif name == b"hvcC":
                self.configs[number] = body[start:end]
        if not self.sizes:
            raise ImageUnreadable(f"the {kind} has no picture with a size")
        if b"iinf" in found:
            self._read_kinds(*found[b"iinf"])
        if b"iloc" in found:
            self._read_places(found[b"iloc"][0], found.get(b"idat", (0, 0)))
        if b"iref" in found:
            self._read_parts(*found[b"iref"])
        if b"pitm" in found:
            at = found[b"pitm"][0]
            self.primary, _ = self._number(at + 4, 4 if body[at] else 2)

    def properties(self, item: int) -> tuple[int, ...]:
        return self._properties.get(item, ())

    def sizes_of(self, item: int) -> list[tuple[int, int]]:
        return [self.sizes[number] for number in self.properties(item) if number in self.sizes]

    def pixels(self, item: int) -> int:
        return max((width * height for width, height in self.sizes_of(item)), default=0)

    def length(self, item: int) -> int:
        return sum(max(0, end - start) for start, end in self._places.get(item, []))

    def data(self, item: int) -> bytes:
        return b"".join(self.body[start:end] for start, end in self._places.get(item, []))

    def _once(self, found: dict[bytes, Part], name: bytes, part: Part) -> None:
        if name in found and name in _ALONE:
            # Readers differ in which they take.
            raise ImageUnreadable("a box of the file, of which there is one, is there twice")
        found[name] = part

    def _count(self, entries: int = 1) -> None:
        self._entries += entries
        if self._entries > ENTRIES:
            raise too_many("file", "boxes and entries", ENTRIES)

    def _boxes(self, at: int, end: int) -> Iterator[tuple[bytes, int, int]]:
        """Name, begin of the content and end of each box from `at` to `end`."""
        while at + 8 <= end:
            self._count()
            size, name = struct.unpack_from(">L4s", self.body, at)
            inner = at + 8
            if size == 1:
                (size,) = struct.unpack_from(">Q", self.body, inner)
                inner += 8
            stop = end if size == 0 else at + size
            if not inner <= stop <= end:
                raise ImageUnreadable("a box of the file does not lie within it")
            yield name, inner, stop
            at = stop

    def _read_properties(self, at: int) -> None:
        """Which properties each item has, `ipma`, of which there may be several."""
        version, wide = self.body[at], self.body[at + 3] & 1
        (count,) = struct.unpack_from(">L", self.body, at + 4)
        at += 8
        for _ in range(count):
            item, at = self._number(at, 4 if version else 2)
            length = self.body[at]
            self._count(1 + length)
            self._new(item, self._properties)
            numbers = struct.unpack_from(f">{length}{'H' if wide else 'B'}", self.body, at + 1)
            self._properties[item] = tuple(
                number & (0x7FFF if wide else 0x7F) for number in numbers
            )
            at += 1 + length * (2 if wide else 1)

    def _read_kinds(self, at: int, end: int) -> None:
        inner = at + (8 if self.body[at] else 6)
        for name, start, _ in self._boxes(inner, end):
            version = self.body[start]
            if name == b"infe" and version >= 2:
                item, kind = self._number(start + 4, 4 if version > 2 else 2)
                self._new(item, self.kinds)
                self.kinds[item] = self.body[kind + 2 : kind + 6]

    def _read_places(self, at: int, idat: Part) -> None:
        version, sizes, more = self.body[at], self.body[at + 4], self.body[at + 5]
        id_bytes = 4 if version > 1 else 2
        count, at = self._number(at + 6, id_bytes)
        for _ in range(count):
            item, at = self._number(at, id_bytes)
            self._new(item, self._places)
            method = self.body[at + 1] & 15 if version else _FROM_FILE
            base, at = self._number(at + (4 if version else 2), more >> 4)
            start, end = idat if method == _FROM_IDAT else (0, len(self.body))
            parts, at = self._number(at, 2)
            self._count(1 + parts)
            places = []
            for _ in range(parts):
                at += more & 15 if version else 0
                offset, at = self._number(at, sizes >> 4)
                length, at = self._number(at, sizes & 15)
                first = start + base + offset
                places.append((first, min(first + length, end) if length else end))
            self._places[item] = places if method in (_FROM_FILE, _FROM_IDAT) else []

    def _read_parts(self, at: int, end: int) -> None:
        wide = self.body[at] > 0
        for name, start, _ in self._boxes(at + 4, end):
            if name == b"dimg":
                item, place = self._number(start, 4 if wide else 2)
                count, place = self._number(place, 2)
                self._count(count)
                form = f">{count}{'L' if wide else 'H'}"
                self.parts[item] += struct.unpack_from(form, self.body, place)

    def _new(self, item: int, known: Container[int]) -> None:
        if item in known:
            raise ImageUnreadable("an item of the file is described twice")

    def _number(self, at: int, size: int) -> tuple[int, int]:
        """A whole number of so many bytes, and where it ends."""
        if at + size > len(self.body):
            raise IndexError("the file ends")
        return int.from_bytes(self.body[at : at + size]), at + size
