"""The event loop's time, by turns between callers."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

from app.contracts.caller import CALLER

T = TypeVar("T")


class CallerLines(Generic[T]):
    """Who waits: callers by turns, and of each caller first come, first served."""

    def __init__(self) -> None:
        self._lines: dict[str, deque[T]] = {}

    def __bool__(self) -> bool:
        return bool(self._lines)

    def add(self, caller: str, waiting: T) -> None:
        self._lines.setdefault(caller, deque()).append(waiting)

    def pop(self) -> T:
        """The next. Raises StopIteration where nobody waits."""
        caller = next(iter(self._lines))
        line = self._lines.pop(caller)
        waiting = line.popleft()
        if line:
            self._lines[caller] = line  # behind the others
        return waiting


class Turns:
    """For one event loop. In each of its rounds one request goes on, callers by turns: however many
    of one caller's come, or are answered, together, another's waits for one of them.

    What a request does between two turns takes about a millisecond, and a burst of a hundred would
    hold the loop for all of them together: a round reads what has come meanwhile.
    """

    def __init__(self) -> None:
        self._lines = CallerLines[asyncio.Future[None]]()
        self._round_of: asyncio.AbstractEventLoop | None = None
        """The loop whose round has its request."""

    async def mine(self) -> None:
        """Wait for a turn of this request's caller; the first of a round has it at once.

        Raises RuntimeError beside a round of another loop, which could not wake this request.
        """
        loop = asyncio.get_running_loop()
        if self._round_of is None:
            self._round_of = loop
            loop.call_soon(self._next, loop)
            return
        if self._round_of is not loop:
            raise RuntimeError("these turns belong to another event loop")
        turn: asyncio.Future[None] = loop.create_future()
        self._lines.add(CALLER.get().name, turn)
        await turn

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        self._round_of = None
        while self._lines and self._round_of is None:
            turn = self._lines.pop()
            if not turn.done():  # or cancelled: who has left takes none
                turn.set_result(None)
                self._round_of = loop
                loop.call_soon(self._next, loop)
