"""The way of what was read to the parser: in slices, so that no connection holds the loop for long.

One read has up to 256 KiB. That is thousands of small requests, or tens of thousands of chunks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sized
from functools import partial
from typing import Protocol

from uvicorn.protocols.http.flow_control import FlowControl

from app.contracts.ports import Clock
from app.server.ending import LAST_LOOK, is_reset
from app.turns import CallerLines

TURN_SECONDS = 0.0005
"""How long a connection parses before others have their turn, and one slice more."""

PIPELINED = 16
"""Requests that came whole and wait behind the one in progress. While there are so many, nothing is
parsed; those of one slice may come on top."""

LAST_TURN_SECONDS = 0.004
"""Between two turns of those that come last. To refuse a request takes an eighth of it."""


class Parsing(Protocol):
    """The connection, as its intake uses it."""

    def slice_bytes(self) -> int:
        """Most bytes to parse in one go."""

    def parse(self, data: bytes | memoryview) -> None:
        """May pause the intake."""

    def deliver(self) -> None:
        """Hand on what a turn had of a body."""


class LastTurn:
    """Stands in the line of LastTurns until it is its own, or cancelled."""

    __slots__ = ("take",)

    def __init__(self, take: Callable[[], None]) -> None:
        self.take: Callable[[], None] | None = take

    def cancel(self) -> None:
        self.take = None


class LastTurns:
    """For one event loop: a line for each caller, of which one connection has its turn each
    LAST_TURN_SECONDS, callers by turns, while all others have theirs as they come."""

    def __init__(self) -> None:
        self._lines = CallerLines[LastTurn]()

    def add(
        self, caller: str, take: Callable[[], None], loop: asyncio.AbstractEventLoop
    ) -> LastTurn:
        turn = LastTurn(take)
        if not self._lines:
            loop.call_later(LAST_TURN_SECONDS, self._next, loop)
        self._lines.add(caller, turn)
        return turn

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        take = None
        while self._lines and take is None:
            take = self._lines.pop().take
        if self._lines:
            loop.call_later(LAST_TURN_SECONDS, self._next, loop)
        if take is not None:
            take()


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
        self._turn: asyncio.Handle | LastTurn | None = None
        self._behind: Callable[[Callable[[], None]], LastTurn] | None = None
        self._next_look: asyncio.TimerHandle | None = None

    @property
    def holds(self) -> bool:
        """Whether anything waits to be parsed."""
        return bool(self._rest)

    def stand_behind(self, turns: LastTurns, caller: str) -> None:
        """What comes next waits for one of these turns."""
        self._behind = partial(turns.add, caller, loop=self._loop)

    def received(self, data: bytes) -> None:
        at_once = self._behind is None
        if at_once and self._wanted and not self._rest and len(data) <= self._parsing.slice_bytes():
            self._parsing.parse(data)  # as most reads are
            self._parsing.deliver()
            return
        self._rest = memoryview(bytes(self._rest) + data if self._rest else data)
        if self._turn is None:
            if at_once:
                self._take_turn()
            else:
                self._pause()
                self._await_turn()

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
            self._await_turn()

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

    def _await_turn(self) -> None:
        behind, self._behind = self._behind, None
        if behind is None:
            self._turn = self._loop.call_soon(self._take_turn)
        else:
            self._turn = behind(self._take_turn)

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
