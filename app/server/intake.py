"""The way of what was read to the parser: in slices, so that no connection holds the loop for long.

One read has up to 256 KiB. That is thousands of small requests, or tens of thousands of chunks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sized
from typing import Protocol

from uvicorn.protocols.http.flow_control import FlowControl

from app.contracts.ports import Clock
from app.server.ending import LAST_LOOK, is_reset

TURN_SECONDS = 0.0005
"""How long a connection parses before others have their turn, and one slice more."""

PIPELINED = 16
"""Requests that came whole and wait behind the one in progress. While there are so many, nothing is
parsed; those of one slice may come on top."""


class Parsing(Protocol):
    """The connection, as its intake uses it."""

    def slice_bytes(self) -> int:
        """Most bytes to parse in one go."""

    def parse(self, data: bytes | memoryview) -> None:
        """May pause the intake."""

    def deliver(self) -> None:
        """Hand on what a turn had of a body."""


class Intake(FlowControl):
    """Keeps what was read and is not parsed yet; the transport is paused while there is any.

    To pause the intake pauses the parser, too. While it is paused it looks from time to time
    whether the client is still there.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        *,
        parsing: Parsing,
        pipeline: Sized,
        clock: Clock = time.monotonic,
    ) -> None:
        super().__init__(transport)
        self._loop = loop
        self._parsing = parsing
        self._pipeline = pipeline
        self._clock = clock
        self._rest = memoryview(b"")
        self._wanted = True
        self._turn: asyncio.Handle | None = None
        self._next_look: asyncio.TimerHandle | None = None

    @property
    def holds(self) -> bool:
        """Whether anything waits to be parsed."""
        return bool(self._rest)

    def received(self, data: bytes) -> None:
        if self._wanted and not self._rest and len(data) <= self._parsing.slice_bytes():
            self._parsing.parse(data)  # as most reads are
            self._parsing.deliver()
            return
        self._rest = memoryview(bytes(self._rest) + data if self._rest else data)
        if self._turn is None:
            self._take_turn()

    def pause_reading(self) -> None:
        self._wanted = False
        self._pause()

    def resume_reading(self) -> None:
        if len(self._pipeline) >= PIPELINED:
            return  # the next reply asks again
        self._wanted = True
        if not self._rest:
            super().resume_reading()
            return
        self._pause()
        if self._turn is None:
            self._turn = self._loop.call_soon(self._take_turn)

    def close(self) -> None:
        """Nothing more is parsed."""
        self._rest = memoryview(b"")
        for handle in (self._turn, self._next_look):
            if handle is not None:
                handle.cancel()
        del self._parsing  # which has us

    def _pause(self) -> None:
        super().pause_reading()
        if self._next_look is None:
            self._next_look = self._loop.call_later(LAST_LOOK, self._look)

    def _look(self) -> None:
        self._next_look = None
        if not self.read_paused or self._transport.is_closing():
            return
        if is_reset(self._transport):
            self._transport.abort()
        else:
            self._next_look = self._loop.call_later(LAST_LOOK, self._look)

    def _take_turn(self) -> None:
        self._turn = None
        until = self._clock() + TURN_SECONDS
        while self._rest and self._wanted:
            size = self._parsing.slice_bytes()
            data, self._rest = self._rest[:size], self._rest[size:]
            self._parsing.parse(data)
            if self._clock() >= until:
                break
        self._parsing.deliver()
        if self._wanted:
            self.resume_reading()
