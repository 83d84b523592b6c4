"""End a connection in a way that the client still receives the reply."""

from __future__ import annotations

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
"""Largest first part of a body that is joined with the headers into one write."""


class WholeReply:
    """Sends a reply that has a single part with one write; any other reply goes through uvicorn.

    uvicorn checks each header with two regular expressions, and looks for headers that frame the
    reply. For a body of known length, counting the line ends finds an invalid header.
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
            or len(body) > JOINED_BYTES
        ):
            return False
        lines = [b"%b: %b\r\n" % pair for pair in (*cycle.default_headers, *headers)]
        head = b"".join((STATUS_LINE[start["status"]], *lines, b"\r\n"))
        if not head.count(b"\n") == head.count(b"\r") == len(lines) + 2:
            return False  # uvicorn raises the error
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = False
        cycle.message_event.set()
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
