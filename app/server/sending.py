"""Whether a client takes what is sent to it."""

from __future__ import annotations

import asyncio
import logging

STALLED_BYTES = 64 * 1024
log = logging.getLogger("paddlepool.protocol")


class StallWatch:
    """Cuts off, flushing nothing, a client that hardly reads: its reply stays in memory."""

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, *, seconds: float
    ) -> None:
        """`seconds` in which a client must take STALLED_BYTES."""
        self._transport = transport
        self._loop = loop
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        left = self._transport.get_write_buffer_size()
        self._timer = self._loop.call_later(self._seconds, self._check, left)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self, before: int) -> None:
        left = self._transport.get_write_buffer_size()
        if before - left < STALLED_BYTES:
            log.info("client stalled", extra={"left_bytes": left})
            self._transport.abort()
        else:
            self.start()
