"""Split inference messages and join replies as bytes, without parsing raw tensors.

The protocol buffer parser would copy each tensor, create some hundred bytes of memory for an empty
part of two bytes, and block the event loop meanwhile. This module counts and measures all parts
first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count

from app.contracts.errors import FileTooLarge, InvalidTensor

RAW_INPUT = 7 << 3 | 2
RAW_OUTPUT = 6 << 3 | 2
"""Tags (field number and wire type) of raw tensors in a request and in a reply."""

MAX_PARTS = 4_096
"""Maximum parts of one message, including nested ones: inputs, parameters, strings, raw tensors."""

Parts = Mapping[int, "Parts"]
"""The fields of a message that are messages themselves, by number, with their own such fields."""

PARAMETER: Parts = {2: {}}
INPUT: Parts = {4: PARAMETER, 5: {}}
OUTPUT: Parts = {2: PARAMETER}
REQUEST: Parts = {4: PARAMETER, 5: INPUT, 6: OUTPUT}

MAX_VARINT = 10
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


def divide(message: bytes, *, max_head: int) -> tuple[bytes, list[memoryview]]:
    """Split a message into its raw tensors and the rest, of at most `max_head` bytes.

    Returns the rest first. Raises InvalidTensor if it is not a message, and FileTooLarge.
    """
    view = memoryview(message)
    head: list[memoryview] = []
    tensors: list[memoryview] = []
    size = 0
    for tag, begin, at, end in _parts(message, 0, len(message), REQUEST, count(1)):
        if tag == RAW_INPUT:
            tensors.append(view[at:end])
        else:
            head.append(view[begin:end])
            size += end - begin
    if size > max_head:
        raise FileTooLarge(
            f"The message has {size} bytes besides its raw tensors, the limit is {max_head}; "
            "larger tensors can be sent as raw_input_contents.",
            limit=max_head,
            received=size,
        )
    return b"".join(head), tensors


def _parts(
    message: bytes, at: int, end: int, inside: Parts, numbers: Iterator[int]
) -> Iterator[tuple[int, int, int, int]]:
    """Yield the tag of each field, and the offsets of its start, of its content and of its end.

    Fields of nested messages are counted but not yielded. Raises InvalidTensor.
    """
    while at < end:
        begin = at
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == BYTES:
            length, at = _varint(message, at)
            stop = at + length
        elif kind == VARINT:
            _, stop = _varint(message, at)
        elif kind in (FIXED64, FIXED32):
            stop = at + (8 if kind == FIXED64 else 4)
        else:
            raise _malformed()
        if stop > end:
            raise _malformed()
        if (number := next(numbers)) > MAX_PARTS:
            raise InvalidTensor(
                f"the message has more than {MAX_PARTS} parts; numbers are sent packed, and large "
                "tensors as raw_input_contents",
                limit=MAX_PARTS,
                received=number,
            )
        yield tag, begin, at, stop
        if kind == BYTES and (parts := inside.get(tag >> 3)) is not None:
            for _ in _parts(message, at, stop, parts, numbers):
                pass
        at = stop


def joined(head: bytes, tensors: Iterable[bytes | memoryview]) -> bytes:
    """Append raw tensors to a reply's message. They may follow it: fields may have any order."""
    parts: list[bytes | memoryview] = [head]
    for tensor in tensors:
        parts += (bytes((RAW_OUTPUT,)), _encoded(len(tensor)), tensor)
    return b"".join(parts)


def together(tensors: Sequence[memoryview]) -> memoryview:
    """Concatenate tensors; a single one is not copied."""
    return tensors[0] if len(tensors) == 1 else memoryview(b"".join(tensors))


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Read a varint. Returns its value and the offset of its end. Raises InvalidTensor."""
    value = 0
    for place in range(MAX_VARINT):
        if at >= len(message):
            break
        byte = message[at]
        at += 1
        value |= (byte & 127) << 7 * place
        if byte < 128:
            return value, at
    raise _malformed()


def _encoded(value: int) -> bytes:
    digits = bytearray()
    while value > 127:
        digits.append(value & 127 | 128)
        value >>= 7
    digits.append(value)
    return bytes(digits)


def _malformed() -> InvalidTensor:
    return InvalidTensor("the message is not one of the protocol")
