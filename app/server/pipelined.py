"""Requests of one connection behind each other, of which one at a time is answered."""

from __future__ import annotations

import asyncio

from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

NO_ROOM = (429, 503)
"""What refuses a request that might be answered at another time."""


class PipelinedProtocol(HttpToolsProtocol):
    """uvicorn tells only the newest request of a connection that its client is gone; here the one
    that is being answered hears of it, too."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._in_body = False
        self._before: RequestResponseCycle | None = None
        self._being_answered: RequestResponseCycle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for cycle in (self._being_answered, self.cycle):
            if cycle is None:
                continue
            cycle.transport = self.transport  # not one of ours, which would keep us, and we it
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()

    def _awaited(self) -> RequestResponseCycle | None:
        """The last request that came whole, while it is not answered."""
        cycle = self._before if self._in_body else self.cycle
        return None if cycle is None or cycle.response_complete else cycle

    def _is_idle(self) -> bool:
        """No request is under way, and the time between two of them does not run."""
        busy = self._in_body or self._awaited() is not None
        return not busy and self.timeout_keep_alive_task is None

    def _found_no_room(self) -> bool:
        """The request that has just been answered came whole, and was refused."""
        cycle = self._being_answered
        if cycle is None or self._in_body:
            return False
        return cycle.scope["state"].get("status") in NO_ROOM

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._being_answered = cycle
        super()._start_asgi_task(cycle, app)
