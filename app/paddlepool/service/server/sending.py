"""Sends replies, ends connections, and limits the bytes that slow clients leave unread."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import socket
import struct
import termios
from typing import cast

from starlette.types import Message, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

STALLED_BYTES = 64 * 1024

log = logging.getLogger("paddlepool.protocol")


class UnreadReplies:
    """Limits the bytes of all unread replies. Used from one event loop only.

    Beyond the limit, the connection with the largest reply is aborted, until the rest fits.
    """

    def __init__(self, limit: int, *, stall_seconds: float) -> None:
        """`limit` is in bytes. Every client must also read STALLED_BYTES within `stall_seconds`."""
        self._limit = limit
        self.stall_seconds = stall_seconds
        self._watches: set[StallWatch] = set()

    def add(self, watch: StallWatch) -> None:
        self._watches.add(watch)
        while sum(watch.held for watch in self._watches) > self._limit:
            largest = max(self._watches, key=lambda watch: watch.held)
            largest.cut("reply dropped for others", limit_bytes=self._limit)

    def discard(self, watch: StallWatch) -> None:
        self._watches.discard(watch)


class StallWatch:
    """Aborts the connection of a client that reads too slowly.

    Between start() and stop(), the client must read STALLED_BYTES in every period of
    `unread.stall_seconds`.
    """

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, unread: UnreadReplies
    ) -> None:
        self._transport = transport
        self._loop = loop
        self._unread = unread
        self._timer: asyncio.TimerHandle | None = None
        self._left = 0
        self.held = 0
        """Bytes that were unread when writing paused. They count in full until writing resumes."""

    def start(self) -> None:
        self._schedule_check()
        self.held = self._left
        self._unread.add(self)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._unread.discard(self)

    def cut(self, event: str, **details: int) -> None:
        log.info(event, extra={"left_bytes": self._unread_bytes(), **details})
        self.stop()
        self._transport.abort()

    def _check(self) -> None:
        if self._left - self._unread_bytes() < STALLED_BYTES:
            self.cut("client stalled")
        else:
            self._schedule_check()

    def _schedule_check(self) -> None:
        self._left = self._unread_bytes()
        self._timer = self._loop.call_later(self._unread.stall_seconds, self._check)

    def _unread_bytes(self) -> int:
        """Return the number of unread bytes, including those in the kernel's send buffer.

        The kernel's buffer takes megabytes that a slow client has not yet read, and accepts more
        only when a third of it is free. Meanwhile the transport's own buffer does not shrink,
        although the client reads.
        """
        connection: socket.socket = self._transport.get_extra_info("socket")
        queued = bytes(4)
        with contextlib.suppress(OSError):  # already closed; connection_lost follows
            queued = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, queued)
        return self._transport.get_write_buffer_size() + int(struct.unpack("i", queued)[0])


LINGER_SECONDS = 1.0
LINGER_BYTES = 1024 * 1024
"""Maximum bytes that are read and discarded after the last reply of a connection. Closing with
unread bytes would reset the connection, and the client might never see the reply."""

JOINED_BYTES = 64 * 1024
"""Largest body that is joined with the headers into one write."""


class WholeReply:
    """Sends the messages of one reply; for ordinary replies it is faster than uvicorn.

    uvicorn checks each header with two regular expressions, and searches for the headers that frame
    the reply. This class sends only bodies of one part and known length on connections that are
    kept open, and it detects an invalid header by counting the line ends. Every other reply is
    passed to uvicorn.
    """

    # uvicorn does not document STATUS_LINE and the attributes of a cycle and of its flow. If they
    # change, the first test to fail is
    # tests/service/server/test_connection_limits.py::test_pipelined_requests_are_answered_in_order.

    __slots__ = ("_cycle", "_cycle_send", "_start")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._cycle_send = cast(Send, cycle.send)
        self._start: Message | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            return
        start, self._start = self._start, None
        if start is not None:
            if self._send_whole(start, message):
                return
            await self._cycle_send(start)
        await self._cycle_send(message)

    def _send_whole(self, start: Message, message: Message) -> bool:
        """Send the reply and return True; return False if uvicorn must send it."""
        cycle, headers, body = self._cycle, start["headers"], message.get("body", b"")
        names = dict(headers)
        if (
            message.get("more_body", False)
            or names.get(b"content-length") != b"%d" % len(body)
            or b"connection" in names
            or b"transfer-encoding" in names
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
        cycle.message_event.set()
        if len(body) > JOINED_BYTES:
            cycle.transport.write(head)
            cycle.transport.write(body)
        else:  # one system call, and the client wakes up only once
            cycle.transport.write(head + body)
        cycle.on_response()
        return True


class Lingering:
    """Closes the sending side of a connection at begin(), and the rest LINGER_SECONDS later."""

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
        """Count discarded bytes; stop reading beyond LINGER_BYTES."""
        self._received += size
        if self._received > LINGER_BYTES:
            self._transport.pause_reading()
