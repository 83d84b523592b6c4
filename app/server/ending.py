"""How a connection ends so that its client hears why, and how a client that is gone is noticed."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

LINGER_SECONDS = 1.0
LINGER_BYTES = 1024 * 1024
"""What a client may still send after the reply that ends its connection. It is thrown away: closing
with unread bytes resets the connection, and the client may never see the reply."""

FIRST_LOOK, LAST_LOOK = 0.02, 0.5
"""Seconds between looks at a client that has closed its side; each pause is twice the last."""

TCP_CLOSE = 7
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def is_reset(transport: asyncio.Transport) -> bool:
    """Whether the client's system has given the connection up, which who does not read from it is
    not told."""
    connection: socket.socket = transport.get_extra_info("socket")
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == TCP_CLOSE


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
        """So many bytes have come that nobody will read."""
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


class HalfClosed:
    """A client that sends no more either waits for its reply or is gone: the bytes are the same.

    An interim response tells the two apart, which every client of HTTP/1.1 must be able to read
    (RFC 9110, 15.2): the system of one that is gone answers it with a reset.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop

    def watch(self, *, ask: bool) -> None:
        """Cut the connection when there is a reset; `ask` where an interim response may be sent."""
        if ask:
            self._transport.write(CONTINUE)
        self._loop.call_later(FIRST_LOOK, self._look, FIRST_LOOK)

    def _look(self, seconds: float) -> None:
        if self._transport.is_closing():
            return
        if is_reset(self._transport):
            self._transport.abort()
            return
        seconds = min(2 * seconds, LAST_LOOK)
        self._loop.call_later(seconds, self._look, seconds)
