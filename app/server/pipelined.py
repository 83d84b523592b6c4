"""Requests of one connection behind each other, of which one at a time is answered."""

from __future__ import annotations

import asyncio

from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle


class PipelinedProtocol(HttpToolsProtocol):
    """uvicorn tells only the newest request of a connection that its client is gone; here the one
    that is being answered hears of it, too."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
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

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._being_answered = cycle
        super()._start_asgi_task(cycle, app)
