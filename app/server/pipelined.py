"""Requests of one connection behind each other, of which one at a time is answered."""

from __future__ import annotations

import asyncio

from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from app.server.intake import Intake
from app.server.protocol_limits import ProtocolLimits


class PipelinedProtocol(HttpToolsProtocol):
    """uvicorn tells only the newest request of a connection that its client is gone; here the one
    that is being answered hears of it, too. And where a reply waits for its client, the next
    request is not begun, nor does the time run in which it must come.

    `_deadline` runs whenever the client owes us bytes of a request.
    """

    connection_limits: ProtocolLimits
    flow: Intake

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._in_body = False
        self._deadline: asyncio.TimerHandle | None = None
        self._before: RequestResponseCycle | None = None
        self._being_answered: RequestResponseCycle | None = None
        self._next: tuple[RequestResponseCycle, ASGI3Application] | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._next = None
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
        """No request is under way or waits, and nothing ends the connection in time."""
        busy = self._in_body or self._awaited() is not None or self._taking()
        return not busy and self._deadline is None and self.timeout_keep_alive_task is None

    def _taking(self) -> bool:
        """The client has not taken the last reply, or what it sent waits to be parsed."""
        return self.flow.write_paused or self.flow.holds

    def _await_next(self) -> None:
        """The next request must begin within the time that uvicorn keeps a connection open."""
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def _owe(self, seconds: float) -> None:
        self._settle()
        self._deadline = self.loop.call_later(max(0.0, seconds), self._expired)

    def _settle(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expired(self) -> None:
        """The deadline has passed."""
        raise NotImplementedError

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._taking():
            self._unset_keepalive_if_required()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unset_keepalive_if_required()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._next is not None:
            following, self._next = self._next, None
            self._start_asgi_task(*following)
        elif self._is_idle() and not self.transport.is_closing():
            self._await_next()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        if self.flow.write_paused:
            self._next = cycle, app
            return
        if self._in_body and cycle is self.cycle:  # its body was not read while it waited
            self._owe(self.connection_limits.receive_seconds)
        self._being_answered = cycle
        super()._start_asgi_task(cycle, app)
