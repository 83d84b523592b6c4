"""End a connection in a way that the client still receives the reply."""

import asyncio
from collections.abc import Callable
from typing import cast

from starlette.types import Message
from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

LINGER_SECONDS = 1.0
LINGER_BYTES = 1024 * 1024
"""Maximum bytes read and discarded after the reply that ends the connection. Closing with unread
bytes would reset the connection, and the client might never see the reply."""


JOINED_BYTES = 64 * 1024
"""Largest body that is joined with the headers into one write."""


class WholeReply:
    """Sends a reply that has a single part; any other reply goes through uvicorn.

    uvicorn is slower: it checks each header with two regular expressions, and searches for the
    headers that frame the reply. This class sends only bodies of known length, and it detects an
    invalid header by counting the line ends.
    """

    __slots__ = ("_cycle", "_start")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._start: Message | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            return
        start, self._start = self._start, None
        if start is not None:
            if self._is_sent(start, message):
                return
            await self._cycle.send(cast(ASGISendEvent, start))
        await self._cycle.send(cast(ASGISendEvent, message))

    def _is_sent(self, start: Message, message: Message) -> bool:
        """Send the reply and return True, unless uvicorn must send it."""
        cycle, headers, body = self._cycle, start["headers"], message.get("body", b"")
        names = {name for name, _ in headers}
        if (
            message.get("more_body", False)
            or (b"content-length", b"%d" % len(body)) not in headers
            or not names.isdisjoint((b"connection", b"transfer-encoding"))
            or cycle.scope["method"] == "HEAD"
            or cycle.disconnected
            or not cycle.keep_alive
            or cycle.flow.write_paused
        ):
            return False
        lines = [b"%b: %b\r\n" % pair for pair in (*cycle.default_headers, *headers)]
        head = b"".join((STATUS_LINE[start["status"]], *lines, b"\r\n"))
        if not head.count(b"\n") == head.count(b"\r") == len(lines) + 2:
            return False  # uvicorn raises the error
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = False
        cycle.message_event.set()
        if len(body) > JOINED_BYTES:
            cycle.transport.write(head)
            cycle.transport.write(body)
        else:  # one system call, and the client wakes up only once
            cycle.transport.write(head + body)
        cycle.on_response()
        return True


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
    """The transport to which uvicorn writes a reply, with `close` in place of its own close()."""

    __slots__ = ("close", "is_closing", "write")

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self.is_closing = transport.is_closing
        self.write = transport.write
        self.close = close
