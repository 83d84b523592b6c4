"""How a connection ends so that its client still gets the reply."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

LINGER_SECONDS = 1.0
LINGER_BYTES = 1024 * 1024
"""What a client may still send after the reply that ends its connection. It is discarded: closing
with unread bytes resets the connection, and the client may never see the reply."""


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
    """The transport as uvicorn's reply uses it, with a close of ours."""

    __slots__ = ("close", "is_closing", "write")

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.close = close
