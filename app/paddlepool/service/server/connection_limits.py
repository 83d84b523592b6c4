"""uvicorn's httptools protocol for HTTP/1.1, with the limits that it lacks.

A client has deadlines for its headers, for the whole request and for reading the reply. The size of
headers is limited, and HTTP/1.1 requires Host. A request with invalid syntax gets 400, after the
replies to earlier complete requests.
"""

from __future__ import annotations

import asyncio
import logging
import re
import select
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import httptools
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from paddlepool.service.api.errors import Fault, Refused, http_fault
from paddlepool.service.api.middleware.exchange import request_id_of
from paddlepool.service.server import sending
from paddlepool.service.server.refusals import last_reply, named, overloaded, refuse_crowded
from paddlepool.settings.server import Settings

PIPELINED = 16
"""Maximum complete requests that wait behind the one in progress."""

REFUSED_CONNECTIONS = 16
"""Connections beyond the limit that get a 503; further ones are closed at once. OWN_DESCRIPTORS in
paddlepool.service.server.system includes their descriptors."""

IDLE_GRACE_SECONDS = 1.0
"""How long a stopping server still accepts a request on an idle connection."""

FIRST_POLL_SECONDS = 0.02
MAX_POLL_SECONDS = 0.5
"""A half-closed connection is polled for a reset at intervals that double from the first to the
maximum."""

ABSOLUTE = re.compile(rb"https?://([^/?#@]+)([/?#].*)?", re.IGNORECASE)
log = logging.getLogger("paddlepool.protocol")


def protocol_class(
    settings: Settings, *, reply_bytes: int, refused: Callable[[int], None] = lambda _status: None
) -> type[LimitedProtocol]:
    """Return a class with the limits of `settings`; `reply_bytes` limits all unread replies.

    `refused` is called with the status of each connection that the protocol ends with an error.
    """
    unread = sending.UnreadReplies(reply_bytes, stall_seconds=settings.send_stall_seconds)
    attributes = {"limits": settings, "unread_replies": unread, "refused": staticmethod(refused)}
    return type("Protocol", (LimitedProtocol,), attributes)


class LimitedProtocol(HttpToolsProtocol):
    """One HTTP connection with its limits."""

    # uvicorn documents that `http=` takes a protocol class, but not the attributes of its own one,
    # and it has no setting for these limits. If the attributes change, the first test to fail is
    # test_pipelined_requests_are_answered_in_order.

    limits: Settings
    unread_replies: sending.UnreadReplies
    refused: Callable[[int], None]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._application = self.app
        self._header_bytes = self._unparsed = 0
        self._in_body = self._ended = self._keeps_alive = False
        self._began = self.loop.time()
        self._body_framing = b""
        self._running: RequestResponseCycle | None = None
        self._postponed: tuple[RequestResponseCycle, ASGIApp] | None = None
        self._final_reply: Callable[[], None] | None = None
        self._lingering = sending.Lingering(transport, self.loop)
        self._sending = sending.StallWatch(transport, self.loop, self.unread_replies)
        self._deadline: float | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._reset_poll: asyncio.TimerHandle | None = None
        self._arm_deadline(self.limits.header_timeout_seconds)
        if len(self.connections) > self.limits.max_connections + REFUSED_CONNECTIONS:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline = None
        for timer in (self._alarm, self._reset_poll):
            if timer is not None:
                timer.cancel()
        self._sending.stop()
        self._postponed = self._final_reply = None
        super().connection_lost(exc)
        self.pipeline.clear()
        for cycle in (self._running, self.cycle):
            if cycle is None:
                continue
            cycle.transport = self.transport  # the wrapper would make a reference cycle
            if not cycle.response_complete:  # uvicorn notifies only the newest request
                cycle.disconnected = True
                cycle.message_event.set()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._ended:
            self._lingering.received(len(data))
            return
        if self.timeout_keep_alive_task is not None:
            self._unset_keepalive_if_required()
            self._arm_deadline(self.limits.header_timeout_seconds)
        # Callbacks do not receive an unfinished header or the extensions of a chunk, so their bytes
        # are counted here. Each callback for complete data resets the count.
        self._unparsed += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            if not self._ended:  # else a tunnel is refused
                self._ignore_offer(data[offer.args[0] :])
            return
        except httptools.HttpParserError as error:
            self._refuse(fault_of_parser(error))
            return
        if self._unparsed > self.limits.header_max_bytes:
            self._refuse(self._headers_too_large())

    def eof_received(self) -> bool:  # type: ignore[override]
        """Answer the complete requests of a client that has closed its sending side.

        Returns True, which keeps the transport open, if requests wait for replies and all are
        complete. A client that has left also closes its sending side, but resets the connection
        when it receives data. The interim response `100 Continue` provokes that reset, so the work
        is cancelled before the reply.
        """
        if not self._is_replying() or (self._in_body and not self._ended):
            return False
        if self._final_reply is None:
            self._final_reply = self.transport.close
        running = self._running
        if running and not running.response_started and running.scope["http_version"] == "1.1":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._reset_poll = self.loop.call_later(FIRST_POLL_SECONDS, self._poll_for_reset, 1)
        return True

    def _poll_for_reset(self, polls: int) -> None:
        """Abort the connection after a reset, which the event loop does not report after EOF."""
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket").fileno(), 0)
        if poll.poll(0):
            self.transport.abort()
        else:
            wait = min(MAX_POLL_SECONDS, FIRST_POLL_SECONDS * 2**polls)
            self._reset_poll = self.loop.call_later(wait, self._poll_for_reset, polls + 1)

    def _ignore_offer(self, rest: bytes) -> None:
        """Go on with HTTP/1.1 although the request offers another protocol (RFC 9110, 7.8).

        `rest` has the bytes after the headers. The parser expects the other protocol there, so a
        new parser reads the body.
        """
        if self._body_framing:
            events = EventsAfterHead(self)
            self.parser = httptools.HttpRequestParser(events)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
            self.parser.feed_data(b"POST / HTTP/1.1\r\n" + self._body_framing + b"\r\n\r\n")
            self._body_framing, events.passing = b"", True
        if rest:
            self.data_received(rest)  # recurses at most PIPELINED times

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._header_bytes = 0
        self._began = self.loop.time()
        self._arm_deadline(self.limits.header_timeout_seconds)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value) + len(": \r\n")
        if self._in_body:  # a trailer must not be added to the request's headers
            self._check_header_bytes()
        else:  # as in uvicorn, without the blanks after a value (RFC 9112, 5.1)
            name, value = name.lower(), value.rstrip(b" \t")
            if name == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = True
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._unparsed = 0
        self._header_bytes += len(self.url)
        self._check_header_bytes()
        if len(self.pipeline) >= PIPELINED:
            detail = f"More than {PIPELINED} requests wait on this connection."
            raise Refused(overloaded(detail, PIPELINED))
        authority, self.url = split_target(self.url)
        version, offer = self.parser.get_http_version(), self.parser.should_upgrade()
        tunnel = offer and self.parser.get_method() == b"CONNECT"
        length = read_framing(self.headers, version=version, tunnel=tunnel)
        if authority:  # the authority takes precedence over Host (RFC 9112, 3.2.2)
            self.headers[:] = [pair for pair in self.headers if pair[0] != b"host"]
            self.headers.append((b"host", authority))
        crowded = len(self.connections) > self.limits.max_connections
        self.app = self._application
        if crowded:
            self.app = partial(refuse_crowded, self.limits.replica)
            self.refused(503)
        super().on_headers_complete()  # raises on an invalid target
        self._in_body = True
        self._keeps_alive = self.cycle.keep_alive = self.cycle.keep_alive and not tunnel
        self._ended = tunnel
        self._body_framing = b""
        if offer and length != 0:
            chunked = b"Transfer-Encoding: chunked"
            self._body_framing = chunked if length is None else b"Content-Length: %d" % length
        self.cycle.transport = SimpleNamespace(  # type: ignore[assignment]  # what uvicorn uses
            write=self.transport.write,
            is_closing=self.transport.is_closing,
            close=self._close_after_reply if length != 0 else self.transport.close,
        )
        if length == 0:
            return
        elapsed = self.loop.time() - self._began
        self._arm_deadline(max(0.0, self.limits.receive_timeout_seconds - elapsed))
        if length is None or length > sending.LINGER_BYTES or self.expect_100_continue:
            # A reply before the body is complete is a rejection. The rest of a chunked or long body
            # is not read, and after a rejection before `100 Continue` a client may or may not send
            # the body. The connection must end, unless the body arrives first.
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._unparsed = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._body_framing:
            return  # the parser has skipped the body, see _ignore_offer()
        self._unparsed = 0
        self._in_body = False
        self._deadline = None
        super().on_message_complete()
        if not self.cycle.response_started:
            self.cycle.keep_alive = self._keeps_alive
        elif self.cycle.response_complete:  # the request was rejected before its body was complete
            self._await_next()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if self._deadline is not None or self.flow.write_paused:
            # A deadline means that a request is arriving already. If writing is paused, the wait
            # for the next request starts when this reply is flushed (resume_writing).
            self._unset_keepalive_if_required()
        if self._final_reply is not None and not self._is_replying():
            self._final_reply()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._sending.start()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._sending.stop()
        if self._postponed is not None:
            postponed, self._postponed = self._postponed, None
            self._start_asgi_task(*postponed)
        elif self._deadline is None and not (self._is_replying() or self.transport.is_closing()):
            self._await_next()

    def shutdown(self) -> None:
        """Close an idle connection after a grace period, and a busy one after its reply.

        A request may already be on its way to an idle one.
        """
        self._keeps_alive = False
        if self.cycle is None or self.cycle.response_complete:
            self.loop.call_later(IDLE_GRACE_SECONDS, super().shutdown)
        else:
            super().shutdown()

    def _start_asgi_task(  # type: ignore[override]  # Starlette's type for the same thing
        self, cycle: RequestResponseCycle, app: ASGIApp
    ) -> None:
        if self.flow.write_paused:
            # Wait until the client has read the last reply before producing the next.
            self._postponed = cycle, app
            return
        self._running = cycle

        def app_of_reply(scope: Scope, receive: Receive, _send: Send) -> Awaitable[None]:
            return app(scope, receive, sending.WholeReply(cycle).send)

        super()._start_asgi_task(cycle, cast(Any, app_of_reply))

    def _is_replying(self) -> bool:
        """Return whether a request waits for its reply; one that is being rejected does not."""
        running = self._running
        if self._postponed is not None:
            return True
        if running is None or running.response_complete:
            return False
        return not (self._ended and self._in_body and running is self.cycle)

    def _await_next(self) -> None:
        """Close the connection unless the next request begins within the keep-alive timeout."""
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def _arm_deadline(self, seconds: float) -> None:
        # The deadline moves with every request. A later deadline keeps the running timer, which
        # checks the deadline again when it fires.
        self._deadline = self.loop.time() + seconds
        if self._alarm is not None and self._deadline < self._alarm.when():
            self._alarm.cancel()
            self._alarm = None
        if self._alarm is None:
            self._alarm = self.loop.call_at(self._deadline, self._check_deadline)

    def _check_deadline(self) -> None:
        self._alarm = None
        if self._deadline is None:
            return
        if (left := self._deadline - self.loop.time()) > 0:
            self._arm_deadline(left)
        elif self.flow.read_paused:  # the server did not read, so the client's time restarts
            self._arm_deadline(self.limits.receive_timeout_seconds)
        else:
            what, limit = "headers", self.limits.header_timeout_seconds
            if self._in_body:
                what, limit = "whole request", self.limits.receive_timeout_seconds
            detail = f"The {what} did not arrive within {limit:g} seconds."
            self._refuse(replace(http_fault(408, detail), limit=limit))

    def _check_header_bytes(self) -> None:
        if self._header_bytes > self.limits.header_max_bytes:
            raise Refused(self._headers_too_large())

    def _headers_too_large(self) -> Fault:
        received, limit = max(self._header_bytes, self._unparsed), self.limits.header_max_bytes
        what = "trailers or the extensions of a chunk" if self._in_body else "headers"
        detail = f"The {what} have at least {received} bytes, the limit is {limit}."
        return replace(http_fault(431, detail), limit=limit, received=received)

    def _close_after_reply(self) -> None:
        if self._in_body and self.cycle.response_complete:
            self._deadline = None
            self._ended = True
            self._lingering.begin()
        else:
            self.transport.close()

    def _refuse(self, fault: Fault) -> None:
        """Reply with `fault` after the replies to earlier requests, then end the connection."""
        self._deadline = None
        self._unset_keepalive_if_required()
        self._ended = True
        running = self._in_body and self.cycle is self._running
        request_id = self._id_of(self.cycle.scope) if running else request_id_of(None)
        self.refused(fault.status)
        log.info(
            "connection refused",
            extra={"request_id": request_id, "status": fault.status, "code": fault.code},
        )
        if self._in_body and not running:  # earlier requests still run
            if self._postponed is not None and self._postponed[0] is self.cycle:
                self._postponed = None
            else:
                self.pipeline.popleft()
        final_reply = partial(self._send_final_reply, fault, request_id)
        if self._is_replying():
            self._final_reply = final_reply
        else:
            final_reply()

    def _id_of(self, scope: Any) -> str:
        """Return the id of a request, for which the application may not have begun yet."""
        offered = next((v for n, v in scope["headers"] if n == b"x-request-id"), b"")
        own: str = scope["state"].setdefault("request_id", request_id_of(offered.decode("latin-1")))
        return own

    def _send_final_reply(self, fault: Fault, request_id: str) -> None:
        if self._in_body and self.cycle is self._running:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if self.cycle.response_started:  # the request must not get a second reply
                self.transport.close()
                return
            self.cycle.scope["state"]["refusal"] = fault  # for the log and the metrics
        self.transport.write(last_reply(named(fault, self.limits.replica), request_id))
        self.flow.resume_reading()
        self._lingering.begin()


class EventsAfterHead:
    """Passes a parser's callbacks to the protocol, except those before `passing` is set."""

    def __init__(self, protocol: LimitedProtocol) -> None:
        self._protocol = protocol
        self.passing = False

    def __getattr__(self, name: str) -> Callable[..., None]:
        return partial(self._pass, getattr(self._protocol, name))

    def _pass(self, event: Callable[..., None], *arguments: bytes) -> None:
        if self.passing:
            event(*arguments)


def split_target(target: bytes) -> tuple[bytes, bytes]:
    """Split a request target into authority (empty unless it is a URL) and path with query.

    Raises Refused (400) for a URL that is invalid or not one of HTTP.
    """
    if b"://" not in target or target.startswith(b"/"):
        return b"", target
    match = ABSOLUTE.fullmatch(target)
    if match is None:
        raise Refused(http_fault(400, "The target is neither a path nor an HTTP URL."))
    authority, rest = match.groups(b"")
    return authority, rest if rest.startswith(b"/") else b"/" + rest


def read_framing(
    headers: Iterable[tuple[bytes, bytes]], *, version: str, tunnel: bool
) -> int | None:
    """Return the length of the body in bytes: 0 without a body, None if it is chunked.

    The parser has checked the syntax: at most one Content-Length, which is a number, and not
    together with Transfer-Encoding. `tunnel` means CONNECT. Raises Refused: 505 for an unknown
    version, 501 for an unknown transfer coding (RFC 9112, 6.1), 400 for other faults.
    """
    if version not in ("1.0", "1.1"):
        raise Refused(version_unknown())
    hosts: list[bytes] = []
    length = 0
    codings: list[bytes] = []
    for name, value in headers:
        if name == b"host":
            hosts.append(value)
        elif name == b"content-length":
            length = int(value)
        elif name == b"transfer-encoding":
            codings += value.lower().split(b",")
    if len(hosts) != 1 and (hosts or version != "1.0"):
        detail = f"A request must have one Host header, received {len(hosts)}."
        raise Refused(http_fault(400, detail))
    if hosts == [b""]:
        raise Refused(http_fault(400, "The Host header is empty."))
    if codings and version == "1.0":
        raise Refused(http_fault(400, "HTTP/1.0 does not allow Transfer-Encoding."))
    codings = [coding.strip() for coding in codings]
    if codings.count(b"chunked") > 1:
        raise Refused(http_fault(400, "Transfer-Encoding lists chunked more than once."))
    if codings not in ([], [b"chunked"]):
        raise Refused(http_fault(501, "The only supported Transfer-Encoding is chunked."))
    if tunnel and (codings or length):
        raise Refused(http_fault(400, "A CONNECT request cannot have a body."))
    return None if codings else length


def version_unknown() -> Fault:
    return http_fault(505, "The supported versions of HTTP are 1.0 and 1.1.")


def fault_of_parser(error: httptools.HttpParserError) -> Fault:
    """Return the fault for an error that the parser found, or that one of our callbacks raised."""
    if isinstance(error.__context__, Refused):
        return error.__context__.fault
    if str(error) == "Invalid HTTP version":
        return version_unknown()
    return http_fault(400, "The request is not valid HTTP/1.1.")
