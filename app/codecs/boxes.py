"""What an AVIF or HEIC file says of its size, read before any decoder runs.

Both are ISO base media files (ISO/IEC 14496-12) that hold pictures as items (ISO/IEC 23008-12): a
property `ispe` gives the size of each, the whole, its tiles and its thumbnails.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from app.contracts.errors import ImageUnreadable

_PATH = (b"meta", b"iprp", b"ipco")


def largest_item(body: bytes, kind: str) -> tuple[int, int]:
    """Width and height of the largest picture in the file.

    Raises ImageUnreadable when no size is there, and struct.error where the file ends.
    """
    start, end = 0, len(body)
    for name in _PATH:
        for found, inner, stop in _boxes(body, start, end):
            if found == name:
                # `meta` has a version and flags before what is in it.
                start, end = inner + (4 if name == b"meta" else 0), stop
                break
        else:
            raise ImageUnreadable(f"the {kind} has no picture with a size")
    sizes = [
        struct.unpack_from(">LL", body, inner + 4)
        for found, inner, _ in _boxes(body, start, end)
        if found == b"ispe"
    ]
    if not sizes:
        raise ImageUnreadable(f"the {kind} has no picture with a size")
    width, height = max(sizes, key=lambda size: size[0] * size[1])
    return width, height


def _boxes(body: bytes, at: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """Name, begin of the content and end of each box from `at` to `end`."""
    while at + 8 <= end:
        size, name = struct.unpack_from(">L4s", body, at)
        inner = at + 8
        if size == 1:
            (size,) = struct.unpack_from(">Q", body, inner)
            inner += 8
        stop = end if size == 0 else at + size
        if not inner <= stop <= end:
            raise ImageUnreadable("a box of the file does not lie within it")
        yield name, inner, stop
        at = stop
