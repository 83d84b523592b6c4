"""Whether a client takes what is sent to it, and what all of them together leave untaken."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import socket
import struct
import termios

STALLED_BYTES = 64 * 1024
FRESH_SECONDS = 1.0
FRESH_SPEED = 65_536.0
"""Before that nobody can tell how fast a client is: it passes for a slow one, in bytes a second."""

log = logging.getLogger("paddlepool.protocol")


class UnreadReplies:
    """For one event loop. Replies that wait for their clients hold at most `limit` bytes together:
    beyond that the client that takes its own the most slowly is cut off, of equally slow ones that
    with the most before it."""

    def __init__(self, limit: int, *, stall_seconds: float) -> None:
        """`stall_seconds` in which a client must take STALLED_BYTES in any case."""
        self._limit = limit
        self._stall_seconds = stall_seconds
        self._watches: set[StallWatch] = set()

    def watch(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> StallWatch:
        return StallWatch(transport, loop, seconds=self._stall_seconds, unread=self)

    def add(self, watch: StallWatch) -> None:
        self._watches.add(watch)
        held = {each: each.held() for each in self._watches}
        total = sum(held.values())
        if total <= self._limit:
            return
        for each in sorted(held, key=lambda each: (each.speed(), -held[each])):
            each.cut("reply dropped for others", limit_bytes=self._limit)
            total -= held[each]
            if total <= self._limit:
                return

    def discard(self, watch: StallWatch) -> None:
        self._watches.discard(watch)


class StallWatch:
    """Cuts off, flushing nothing, a client that hardly reads: its reply stays in memory."""

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        *,
        seconds: float,
        unread: UnreadReplies,
    ) -> None:
        """`seconds` in which a client must take STALLED_BYTES."""
        self._transport = transport
        self._loop = loop
        self._seconds = seconds
        self._unread = unread
        self._timer: asyncio.TimerHandle | None = None
        self._began = 0.0
        self._size = self._left = 0
        self._speed = FRESH_SPEED

    def start(self) -> None:
        self._size = self._untaken()
        self._speed = FRESH_SPEED
        self._look_again_later()
        self._unread.add(self)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._unread.discard(self)

    def held(self) -> int:
        """Bytes that this process holds: all of a reply until the last of it is taken."""
        return self._size

    def speed(self) -> float:
        """Bytes a second that the client has taken of late."""
        seconds = self._loop.time() - self._began
        if seconds < FRESH_SECONDS:
            return self._speed
        return self._taken() / seconds

    def cut(self, event: str, **said: int) -> None:
        log.info(event, extra={"left_bytes": self._untaken(), **said})
        self.stop()
        self._transport.abort()

    def _check(self) -> None:
        if self._taken() < STALLED_BYTES:
            self.cut("client stalled")
        else:
            self._speed = self.speed()
            self._look_again_later()

    def _look_again_later(self) -> None:
        self._began = self._loop.time()
        self._left = self._untaken()
        self._timer = self._loop.call_later(self._seconds, self._check)

    def _taken(self) -> int:
        """Since the last look."""
        return self._left - self._untaken()

    def _untaken(self) -> int:
        """With what the kernel holds, megabytes of which it asks for more only when a third has
        gone: a slow client takes longer than `seconds` over that."""
        connection: socket.socket = self._transport.get_extra_info("socket")
        queued = bytes(4)
        with contextlib.suppress(OSError):  # closed just now; we are told in a moment
            queued = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, queued)
        return self._transport.get_write_buffer_size() + int(struct.unpack("i", queued)[0])
