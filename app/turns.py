"""The event loop's time, by turns between callers."""

from __future__ import annotations

import asyncio
from collections import deque

from app.contracts.caller import CALLER


class Turns:
    """For one event loop. In each of its rounds one request goes on, callers by turns: however many
    of one caller's come, or are answered, together, another's waits for one of them.

    What a request does between two turns takes about a millisecond, and a burst of a hundred would
    hold the loop for all of them together: a round reads what has come meanwhile.
    """

    def __init__(self) -> None:
        self._lines: dict[str, deque[asyncio.Future[None]]] = {}
        self._taken = False

    async def mine(self) -> None:
        """Wait for a turn of this request's caller; the first of a round has it at once."""
        loop = asyncio.get_running_loop()
        if not self._taken:
            self._taken = True
            loop.call_soon(self._next, loop)
            return
        turn: asyncio.Future[None] = loop.create_future()
        self._lines.setdefault(CALLER.get().name, deque()).append(turn)
        await turn

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        self._taken = False
        while self._lines and not self._taken:
            caller = next(iter(self._lines))
            line = self._lines.pop(caller)
            turn = line.popleft()
            if line:
                self._lines[caller] = line  # behind the others
            if not turn.done():  # or cancelled: who has left takes none
                turn.set_result(None)
                self._taken = True
        if self._taken:
            loop.call_soon(self._next, loop)
