"""How a connection ends so that its client still gets the reply."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

LINGER_SECONDS = 1.0
LINGER_BYTES = 1024 * 1024
"""What a client may still send after the reply that ends its connection. It is discarded: closing
with unread bytes resets the connection, and the client may never see the reply."""


JOINED_BYTES = 64 * 1024
"""The largest first part of a body that is copied behind its headers, to leave in one write."""


class Lingering:
    """Ends our side of a connection, and the rest of it within LINGER_SECONDS and LINGER_BYTES."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._received = 0
        self.begun = False

    def begin(self) -> None:
        if self.begun or self._transport.is_closing():
            return
        self.begun = True
        self._transport.write_eof()
        self._loop.call_later(LINGER_SECONDS, self._transport.close)

    def received(self, size: int) -> None:
        """Count bytes that are discarded, and stop reading beyond the limit."""
        self._received += size
        if self._received > LINGER_BYTES:
            self._transport.pause_reading()


class ReplyTransport:
    """The transport as uvicorn's reply uses it: headers leave together with the first of the body.

    That saves a system call, and its client from waking up twice. `close` is the caller's.
    """

    __slots__ = ("_begun", "_close", "_head", "_transport", "is_closing")

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self.is_closing = transport.is_closing
        self._transport = transport
        self._close = close
        self._begun = False
        self._head = b""

    def write(self, data: bytes) -> None:
        if not self._begun and not data.startswith(b"HTTP/1.1 1"):  # as `100 Continue` does
            self._begun, self._head = True, data
        else:
            head, self._head = self._head, b""
            if head and len(data) > JOINED_BYTES:
                self._transport.write(head)
                head = b""
            self._transport.write(head + data if head else data)

    def flush(self) -> None:
        """Write headers that no body follows."""
        if self._head:
            self.write(b"")

    def close(self) -> None:
        self.flush()
        self._close()
