"""End a connection in a way that the client still receives the reply."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

LINGER_SECONDS = 1.0
LINGER_BYTES = 1024 * 1024
"""Maximum bytes read and discarded after the reply that ends the connection. Closing with unread
bytes would reset the connection, and the client might never see the reply."""


JOINED_BYTES = 64 * 1024
"""Largest first part of a body that is joined with the headers into one write."""


class Lingering:
    """Shuts down the sending side of a connection, and closes it after LINGER_SECONDS.

    Meanwhile it discards up to LINGER_BYTES of received data.
    """

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
        """Count discarded bytes, and stop reading beyond the limit."""
        self._received += size
        if self._received > LINGER_BYTES:
            self._transport.pause_reading()


class ReplyTransport:
    """A transport for uvicorn's reply that sends the headers with the first part of the body.

    This saves a system call, and the client wakes up only once. `close` is called in place of the
    transport's own close().
    """

    __slots__ = ("_begun", "_close", "_head", "_transport", "is_closing")

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self.is_closing = transport.is_closing
        self._transport = transport
        self._close = close
        self._begun = False
        self._head = b""

    def write(self, data: bytes) -> None:
        if not self._begun and not data.startswith(b"HTTP/1.1 1"):  # such as `100 Continue`
            self._begun, self._head = True, data
        else:
            head, self._head = self._head, b""
            if head and len(data) > JOINED_BYTES:
                self._transport.write(head)
                head = b""
            self._transport.write(head + data if head else data)

    def flush(self) -> None:
        """Write headers that are still held back because no body followed."""
        if self._head:
            self.write(b"")

    def close(self) -> None:
        self.flush()
        self._close()
