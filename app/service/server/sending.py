"""Detect clients that do not read their replies, and limit all unread replies together."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import socket
import struct
import termios

STALLED_BYTES = 64 * 1024

log = logging.getLogger("paddlepool.protocol")


class UnreadReplies:
    """Limits the bytes of all unread replies together. Used from one event loop only.

    Beyond `limit`, the connection with the largest unread reply is closed.
    """

    def __init__(self, limit: int, *, stall_seconds: float) -> None:
        """Each client must read STALLED_BYTES within `stall_seconds`, whatever the total is."""
        self._limit = limit
        self.stall_seconds = stall_seconds
        self._watches: set[StallWatch] = set()

    def add(self, watch: StallWatch) -> None:
        self._watches.add(watch)
        while sum(each.held for each in self._watches) > self._limit:
            largest = max(self._watches, key=lambda each: each.held)
            largest.cut("reply dropped for others", limit_bytes=self._limit)

    def discard(self, watch: StallWatch) -> None:
        self._watches.discard(watch)


class StallWatch:
    """Aborts the connection of a client that reads too slowly."""

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

    def cut(self, event: str, **said: int) -> None:
        log.info(event, extra={"left_bytes": self._unread_bytes(), **said})
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
        """Unread bytes, including those in the kernel's send buffer.

        The kernel's buffer takes megabytes that a slow client has not yet read, and accepts more
        only after a third is sent. The transport's own buffer alone would therefore look stalled.
        """
        connection: socket.socket = self._transport.get_extra_info("socket")
        queued = bytes(4)
        with contextlib.suppress(OSError):  # already closed; connection_lost follows
            queued = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, queued)
        return self._transport.get_write_buffer_size() + int(struct.unpack("i", queued)[0])
