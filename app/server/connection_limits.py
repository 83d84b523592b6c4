"""HTTP/1.1 as uvicorn's httptools protocol speaks it, with the limits that it lacks.

A client has a deadline for its headers and one for the whole request, may not send more than so
many bytes of headers, and must name its host. Whatever breaks the syntax of HTTP gets 400.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from dataclasses import dataclass, replace

from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from app.api.errors import http_fault
from app.api.problems import MEDIA_TYPE, Fault, members, reply
from app.contracts.errors import Overloaded

LINGER_SECONDS = 1.0
STALLED_BYTES = 64 * 1024
BODY_HEADERS = (b"content-length", b"transfer-encoding")
log = logging.getLogger("paddlepool.protocol")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolLimits:
    """What one connection may take: seconds, bytes, and open connections of the whole server."""

    header_seconds: float
    header_bytes: int
    receive_seconds: float
    send_stall_seconds: float
    connections: int


def protocol_class(limits: ProtocolLimits) -> type[HttpToolsProtocol]:
    """The protocol with these limits; uvicorn builds one object for each connection."""

    class Protocol(LimitedProtocol):
        connection_limits = limits

    return Protocol


class LimitedProtocol(HttpToolsProtocol):
    """One connection. `_deadline` runs whenever the client owes us bytes of a request."""

    connection_limits: ProtocolLimits

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._application = self.app
        self._refusal = http_fault(400, "The request is not valid HTTP/1.1.")
        self._in_body = False
        self._header_bytes = self._unparsed = 0
        self._began = self.loop.time()
        self._ending = self._last = False
        self._deadline: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._owe(self.connection_limits.header_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._settle()
        self._unwatch_sending()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._ending or self.transport.is_closing():
            return
        # A header that has not ended is in no callback yet, only in the parser's memory.
        self._unparsed = 0 if self._in_body else self._unparsed + len(data)
        super().data_received(data)
        if self._unparsed > self.connection_limits.header_bytes and not self._ending:
            self._refuse(self._headers_too_large())

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
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts != 1 and (hosts or self.parser.get_http_version() != "1.0"):
            self._refusal = http_fault(400, f"A request has one Host header, received {hosts}.")
            raise ValueError("host")  # ends the parsing; send_400_response follows
        elapsed = self.loop.time() - self._began
        self._owe(self.connection_limits.receive_seconds - elapsed)
        upgrade = self.parser.should_upgrade()
        if upgrade and any(name in BODY_HEADERS and value != b"0" for name, value in self.headers):
            # The parser takes what follows an upgrade for another protocol and drops the body.
            self._refusal = http_fault(400, "A request with a body cannot ask for an upgrade.")
            raise ValueError("upgrade")
        crowded = len(self.connections) > self.connection_limits.connections
        self.app = _crowded if crowded else self._application
        super().on_headers_complete()  # which may refuse the address
        self._in_body = True
        if self._last or self.expect_100_continue:
            # A client that is refused before `100 Continue` may send the body or not send it.
            self.cycle.keep_alive = False
        if upgrade:  # answered without one; nothing behind it is ours to read
            self.cycle.keep_alive = False
            self._ending = True

    def on_message_complete(self) -> None:
        self._in_body = False
        self._settle()
        super().on_message_complete()
        if self.cycle is not None and self.cycle.response_complete and not self.pipeline:
            # Answered before its body had arrived, as a 413 is: only now is the connection idle.
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def shutdown(self) -> None:
        """The server stops. A request may be on its way on an idle connection: wait for it."""
        if self.cycle is not None and not self.cycle.response_complete:
            super().shutdown()
            return
        self._last = True
        self.loop.call_later(LINGER_SECONDS, self._close_when_idle)

    def _close_when_idle(self) -> None:
        # Half a request is left to its deadline, one in progress to its reply.
        busy = self.cycle is not None and not self.cycle.response_complete
        if not (busy or self._unparsed):
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_sending()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unwatch_sending()

    def _watch_sending(self) -> None:
        left = self.transport.get_write_buffer_size()
        self._stall = self.loop.call_later(
            self.connection_limits.send_stall_seconds, self._check_sending, left
        )

    def _unwatch_sending(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _check_sending(self, before: int) -> None:
        """A client that hardly reads holds the reply in memory: cut it off, flushing nothing."""
        if before - self.transport.get_write_buffer_size() < STALLED_BYTES:
            log.info("client stalled", extra={"left_bytes": self.transport.get_write_buffer_size()})
            self.transport.abort()
        else:
            self._watch_sending()

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
        limit = self.connection_limits.header_bytes
        received = max(self._header_bytes, self._unparsed)
        return replace(
            http_fault(431, f"The headers have at least {received} bytes, the limit is {limit}."),
            limit=limit,
            received=received,
        )

    def _owe(self, seconds: float) -> None:
        self._settle()
        self._deadline = self.loop.call_later(max(0.0, seconds), self._expired)

    def _settle(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

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
        detail = f"The {what} did not arrive within {limit:g} seconds."
        self._refuse(replace(http_fault(408, detail), limit=limit))

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
        cycle = self.cycle
        running = cycle is not None and not cycle.response_complete
        # A running request that is not the broken one must not get a stranger's reply, and one
        # that was answered before its body had come must not get a second one.
        silent = cycle.response_started if self._in_body else running
        if running:
            cycle.disconnected = True
            cycle.message_event.set()
        if silent:
            self.transport.close()
            return
        body = json.dumps(members(fault, request_id=request_id, instance="")).encode()
        self.transport.write(
            STATUS_LINE[fault.status]
            + b"content-type: %b\r\n" % MEDIA_TYPE.encode()
            + b"content-length: %d\r\n" % len(body)
            + b"x-request-id: %b\r\nx-content-type-options: nosniff\r\n" % request_id.encode()
            + b"connection: close\r\n\r\n"
            + body
        )
        # Closing with unread bytes resets the connection and the client never sees the reply.
        self.transport.write_eof()
        self.flow.resume_reading()
        self.loop.call_later(LINGER_SECONDS, self.transport.close)


async def _crowded(scope: Scope, receive: Receive, send: Send) -> None:
    """The backstop: too many connections are open to look at this one's request."""
    scope["state"]["request_id"] = secrets.token_hex(8)
    fault = Fault(
        status=503,
        code=Overloaded.code,
        title=Overloaded.title,
        detail="Too many connections are open.",
        headers={"Retry-After": "1", "Connection": "close"},
    )
    await reply(fault, scope)(scope, receive, send)
