"""One request's body as it arrives, and how many bytes of the wire it may take.

A body in chunks costs by the chunk, and the framing of a chunk may be of any size.
"""

from __future__ import annotations

from uvicorn._types import HTTPScope

from app.api.errors import fault_of
from app.api.problems import Fault
from app.contracts.errors import FileTooLarge

CHUNKED_SLICE = 16 * 1024
"""Bytes that are parsed in one go: at most 2,700 chunks. A body whose length is known costs no
more in one piece."""

FRAMING_BYTES = 16 * 1024
"""What the framing of chunks may take beside an eighth of the limit of the body."""

UNTIL_SAID = 1024 * 1024
"""The limit of a body while its request waits behind others."""


class Incoming:
    """Counts what came and what is missing."""

    __slots__ = ("_chunked", "_left", "_new", "_wire")

    def __init__(self, length: int | None) -> None:
        """`length` of the body in bytes, None where it comes in chunks."""
        self._chunked = length is None
        self._left = length or 0
        self._wire = 0
        self._new = False

    def slice_bytes(self) -> int:
        """Most bytes to parse in one go."""
        return self._left if self._left > 0 else CHUNKED_SLICE

    def add(self, size: int) -> None:
        self._left -= size
        self._new = True

    def take(self) -> bool:
        """Whether anything came since the last time."""
        new, self._new = self._new, False
        return new

    def exceeds(self, limit: int, parsed: int) -> bool:
        """Whether the chunks, with `parsed` bytes of them more, are too much for a `limit`."""
        self._wire += parsed
        return self._chunked and self._wire > most_on_the_wire(limit)


def most_on_the_wire(limit: int) -> int:
    """Bytes of chunks that a body of `limit` bytes may have."""
    return limit + limit // 8 + FRAMING_BYTES


def body_limit(scope: HTTPScope) -> int:
    """Bytes; the application says it when it begins to read, and little is read before."""
    limit: int = scope["state"].get("body_limit", UNTIL_SAID)
    return limit


def body_too_large(limit: int) -> Fault:
    """Of chunks that take more than a body of `limit` bytes may."""
    most = most_on_the_wire(limit)
    return fault_of(
        FileTooLarge(
            f"The chunks of the body have more than {most} bytes with their framing, and the limit "
            f"of the body is {limit}.",
            limit=limit,
            received=f"more than {most}",
        )
    )
