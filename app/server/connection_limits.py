"""HTTP/1.1 as uvicorn's httptools protocol speaks it, with the limits that it lacks.

A client has a deadline for its headers and one for the whole request, may not send more than so
many bytes of headers, and must name its host. Whatever breaks the syntax of HTTP gets 400; requests
that came whole before it are answered first.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import sys
from collections.abc import Callable
from functools import partial

from app.api.errors import http_fault
from app.api.problems import Fault
from app.server.crowded import TOLD_CONNECTIONS, refuse_crowded
from app.server.ending import LINGER_BYTES, LINGER_SECONDS, HalfClosed, Lingering, ReplyTransport
from app.server.framing import Misframed, read_framing
from app.server.incoming import Incoming, body_limit, body_too_large
from app.server.intake import Intake
from app.server.pipelined import PipelinedProtocol
from app.server.protocol_limits import ProtocolLimits
from app.server.refusals import headers_too_large, last_reply, too_slow
from app.server.sending import UnreadReplies

HEAD_SLICE = 2 * 1024
"""Bytes of headers that are parsed in one go: what most requests have, or a hundred small ones."""

log = logging.getLogger("paddlepool.protocol")


def protocol_class(limits: ProtocolLimits) -> type[LimitedProtocol]:
    """The protocol with these limits; uvicorn builds one object for each connection."""

    class Protocol(LimitedProtocol):
        connection_limits = limits
        unread_replies = UnreadReplies(limits.reply_bytes, stall_seconds=limits.send_stall_seconds)

    return Protocol


class LimitedProtocol(PipelinedProtocol):
    """One connection."""

    unread_replies: UnreadReplies

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._intake = Intake(transport, self.loop, parsing=self, pipeline=self.pipeline)
        self.flow = self._intake
        self._application = self.app
        self._refusal = http_fault(400, "The request is not valid HTTP/1.1.")
        self._header_bytes = self._unparsed = 0
        self._body = Incoming(0)
        self._began = self.loop.time()
        self._ending = self._last = self._keeps_alive = False
        self._lingering = Lingering(transport, self.loop)
        self._deferred: Callable[[], None] | None = None
        self._sending = self.unread_replies.watch(transport, self.loop)
        self._owe(self.connection_limits.header_seconds)
        if len(self.connections) > self.connection_limits.connections + TOLD_CONNECTIONS:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._settle()
        self._sending.stop()
        self._intake.close()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self._unset_keepalive_if_required()
            self._intake.received(data)

    def slice_bytes(self) -> int:
        if self._ending:
            return sys.maxsize
        return self._body.slice_bytes() if self._in_body else HEAD_SLICE

    def parse(self, data: bytes | memoryview) -> None:
        if self.transport.is_closing():
            return
        if self._ending:
            self._lingering.received(len(data))
            return
        # A header that has not ended is in no callback yet, only in the parser's memory; a chunk's
        # extension is in none at all.
        self._unparsed += len(data)
        super().data_received(data)  # type: ignore[arg-type]  # the parser takes it as it is
        if self._ending:
            return
        if self._is_idle():  # what came was an empty line: a request must follow it
            self._owe(self.connection_limits.header_seconds)
        if self._unparsed > self.connection_limits.header_bytes:
            self._refuse(self._headers_too_large())
        elif self._in_body and self._body.exceeds(limit := body_limit(self.scope), len(data)):
            self._refuse(body_too_large(limit))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._header_bytes = 0
        self._began = self.loop.time()
        self._owe(self.connection_limits.header_seconds)

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + len(": \r\n"))
        if not self._in_body:  # a trailer would turn up among headers that have been read
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._unparsed = 0
        version, upgrade = self.parser.get_http_version(), self.parser.should_upgrade()
        try:
            framing = read_framing(self.headers, version=version, upgrade=upgrade)
        except Misframed as misframed:  # ends the parsing; send_400_response follows
            self._refusal = misframed.fault
            raise
        elapsed = self.loop.time() - self._began
        self._owe(self.connection_limits.receive_seconds - elapsed)
        crowded = len(self.connections) > self.connection_limits.connections
        self.app = refuse_crowded if crowded else self._application
        before = self._awaited()
        super().on_headers_complete()  # which may refuse the address
        self._before, self._in_body = before, True
        self._body = Incoming(framing.length)
        # A client that is refused before `100 Continue` may send the body or not send it; behind
        # an upgrade nothing is ours to read.
        keeps = self.cycle.keep_alive and not (self._last or self.expect_100_continue or upgrade)
        self._keeps_alive = self.cycle.keep_alive = keeps
        self._ending = upgrade
        if framing.length != 0:
            self.cycle.transport = ReplyTransport(  # type: ignore[assignment]  # what it uses of it
                self.transport, self._close_after_reply
            )
            if framing.length is None or framing.length > LINGER_BYTES:
                # Until the body is here: a reply before that is a refusal, and we read no further.
                self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._unparsed = 0
        self._body.add(len(body))
        if not self.cycle.response_complete:
            self.cycle.body += body

    def deliver(self) -> None:
        if self._body.take():
            super().on_body(b"")  # wakes whoever reads, and pauses when that is slow

    def on_message_complete(self) -> None:
        self.deliver()
        self._unparsed = 0
        self._in_body = False
        self._settle()
        super().on_message_complete()
        cycle = self.cycle
        if not cycle.response_started:
            cycle.keep_alive = self._keeps_alive
        elif cycle.response_complete and not (self.pipeline or self._taking()):
            # Answered before its body had arrived, as a 413 is: only now is the connection idle.
            self._await_next()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing() or self._lingering.begun or self._awaited() is not None:
            return
        if self._deferred is not None:
            self._deferred()
        elif self._in_body and self.cycle.response_complete:  # the rest of what was refused
            self._owe(LINGER_SECONDS)

    def eof_received(self) -> bool:  # type: ignore[override]  # uvloop keeps it open for a true
        """Whoever sends no more still gets the answers to what came whole."""
        whole = self._awaited()
        if whole is None or self._lingering.begun:
            return False
        self._drop_unfinished()
        whole.keep_alive = False
        ask = not (self.pipeline or whole.response_started) and whole.scope["http_version"] == "1.1"
        HalfClosed(self.transport, self.loop).watch(ask=ask)
        return True

    def _drop_unfinished(self) -> None:
        """Read no further; what has not come whole is not begun."""
        self._settle()
        self._ending = True
        if self._in_body and self.pipeline and self.pipeline[0][0] is self.cycle:
            self.pipeline.popleft()
        if self._in_body and self._next is not None and self._next[0] is self.cycle:
            self._next = None

    def _close_after_reply(self) -> None:
        if self._in_body and self.cycle.response_complete:
            self._drop_unfinished()
            self._lingering.begin()
        else:
            self.transport.close()

    def shutdown(self) -> None:
        """The server stops. A request may be on its way on an idle connection: wait for it."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._keeps_alive = False
            super().shutdown()
            return
        self._last = True
        self.loop.call_later(LINGER_SECONDS, self._close_when_idle)

    def _close_when_idle(self) -> None:
        # Half a request is left to its deadline, one in progress to its reply.
        busy = self.cycle is not None and not self.cycle.response_complete
        if not (busy or self._unparsed or self._intake.holds):
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._sending.start()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._sending.stop()

    def send_400_response(self, msg: str) -> None:
        """uvicorn calls this for whatever the parser or a callback of ours refuses."""
        del msg
        self._refuse(self._refusal)

    def _count(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > self.connection_limits.header_bytes:
            self._refusal = self._headers_too_large()
            raise ValueError("headers")

    def _headers_too_large(self) -> Fault:
        received = max(self._header_bytes, self._unparsed)
        what = "trailers or the extensions of a chunk" if self._in_body else "headers"
        return headers_too_large(what, limit=self.connection_limits.header_bytes, received=received)

    def _expired(self) -> None:
        if self.flow.read_paused:  # it is us who do not read
            self._owe(1.0)
            return
        limits = self.connection_limits
        what, limit = (
            ("whole request", limits.receive_seconds)
            if self._in_body
            else ("headers", limits.header_seconds)
        )
        self._refuse(too_slow(what, limit=limit))

    def _refuse(self, fault: Fault) -> None:
        """Answer and end the connection; whatever still arrives is thrown away."""
        self._settle()
        self._unset_keepalive_if_required()
        self._ending = True
        request_id = secrets.token_hex(8)
        log.info(
            "connection refused",
            extra={"request_id": request_id, "status": fault.status, "code": fault.code},
        )
        if self._awaited() is not None:  # its reply goes first
            self._drop_unfinished()
            self._deferred = partial(self._end_with, fault, request_id)
        else:
            self._end_with(fault, request_id)

    def _end_with(self, fault: Fault, request_id: str) -> None:
        if self._in_body:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if self.cycle.response_started:  # it must not get a second one
                self.transport.close()
                return
        self.transport.write(last_reply(fault, request_id))
        self.flow.resume_reading()
        self._lingering.begin()
