"""What takes bytes that a stranger may have made: one function each, for any fuzzer.

Each takes any bytes, and raises only where there is a fault.
"""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Callable

from app.codecs.headers import check_header
from app.codecs.limits import PictureLimits
from app.codecs.sniff import sniff
from app.contracts.errors import InputError
from app.process.answers import Answer, read_answer
from app.process.shared_arrays import SharedArrays
from tests.codecs import pictures

LIMITS = PictureLimits()


def picture_header(data: bytes) -> None:
    """Either a size within the limits or an error of the client's."""
    with contextlib.suppress(InputError):
        check_header(data, sniff(data), LIMITS)


def child_answer(data: bytes) -> None:
    """Either views within the block, an error to raise, or ValueError."""
    block = SharedArrays.create("fuzz")
    try:
        block.write({})
        with contextlib.suppress(ValueError):
            answer = read_answer(data)
            if isinstance(answer, Answer):
                for view in block.read(answer.layout).values():
                    assert not view.size, "the block has no byte"
                    assert view.dtype.kind in "biuf"
    finally:
        block.close()


def _answers() -> list[bytes]:
    answers: list[object] = [
        {"meta": {"a": 1}, "arrays": [["x", "<f4", [0, 3], 0]], "seconds": 0.5},
        {"meta": {}, "arrays": [["x", "|u1", [2, 2], 64], ["y", "<i8", [1], 128]], "seconds": 1},
        {"error": {"kind": "ImageUnreadable", "message": "no", "limit": 3, "received": 4}},
        {"error": {"errno": 24}},
    ]
    return [json.dumps(answer).encode() for answer in answers]


def _pictures() -> list[bytes]:
    plain = [pictures.encoded(pictures.corners(), kind) for kind in pictures.FORMATS]
    return [
        *plain,
        pictures.jpeg_with_scans(9),
        pictures.jpeg_of_empty_scans(64, 64, scans=5, components=3, factors=0x22),
        pictures.run_length_bmp(4, 2, b"\x04\x01\0\0\x04\x02\0\1"),
        pictures.padded_gif(b"!\xfe\3abc\0!\xff\x0bNETSCAPE2.0\3\1\0\0\0"),
        pictures.padded_png(pictures.chunk(b"iCCP", b"a\0\0") + pictures.chunk(b"tEXt", b"a\0b")),
        b"RIFF" + struct.pack("<I", 30) + b"WEBPVP8X" + bytes(18),
    ]


TARGETS: dict[str, tuple[Callable[[bytes], None], Callable[[], list[bytes]]]] = {
    "picture header": (picture_header, _pictures),
    "child answer": (child_answer, _answers),
}
"""By name: the function, and the bytes to begin with."""
