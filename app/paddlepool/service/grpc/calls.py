"""Answer gRPC calls: identify the caller, check its quota, receive the message, answer, log.

Handlers receive even a single message as a stream. A call can therefore be rejected before its
message, which may have many megabytes, is read, and the number of messages that arrive at once is
limited.
"""

from __future__ import annotations

import asyncio
import time
import urllib.parse
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import (
    ExitStack,
    aclosing,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc
from starlette.datastructures import Headers
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from paddlepool.contracts.caller import CALLER, REQUEST_ID
from paddlepool.contracts.errors import InvalidTensor, Overloaded, PaddlepoolError
from paddlepool.service.api.errors import INTERNAL, Fault, fault_of, http_fault, log_failure
from paddlepool.service.api.middleware.exchange import CLIENT_GONE, LOGGED, record, request_id_of
from paddlepool.service.api.middleware.keys import is_routine
from paddlepool.service.api.middleware.layer import REPLICA, TRACE_ID
from paddlepool.service.api.middleware.limits import Budget, Gates, is_free, too_large
from paddlepool.service.api.services import Services
from paddlepool.service.grpc.messages import SERVICE

if TYPE_CHECKING:  # an optional extra
    from paddlepool.observability.tracing import RequestSpan, Tracing

NOT_RECORDED = 0
"""The `status` of an admitted stream, which is not logged or measured itself; its messages are."""


@dataclass(slots=True)
class Call:
    """One call, or one message of a stream, and its result.

    `within` is the time in seconds that its client waits; None if the client sets no limit.
    """

    within: float | None
    status: int = 500
    """The HTTP status that stands for the call's result."""
    metadata: dict[str, str] = field(default_factory=dict)
    """Trailing metadata, sent after the reply."""

    def fail(self, fault: Fault) -> Fault:
        """Copy the status and metadata of `fault` to this call. Returns `fault`."""
        self.status = fault.status
        self.metadata |= metadata_of(fault)
        return fault


@dataclass(frozen=True, slots=True)
class Failed:
    """A message of a stream that was not answered, and why."""

    fault: Fault
    message: bytes


UnaryHandler = Callable[[bytes, Call], Awaitable[bytes]]
"""Returns the reply's message for a request's message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A gRPC method. `path` is its equivalent over HTTP, whose rules on keys and quotas apply."""

    name: str
    path: str
    handler: UnaryHandler
    service: str = SERVICE

    @property
    def route(self) -> str:
        return f"/{self.service}/{self.name}"


class Calls:
    """Answers every call of the port. Used from one event loop only."""

    def __init__(self, services: Services, gates: Gates) -> None:
        settings = services.settings
        self._services = services
        self._tracing = services.tracing
        self._gates = gates
        self._proxy_headers = ProxyHeadersMiddleware(_nothing, trusted_hosts=settings.proxies())
        # gRPC assembles whole messages, so only as many may arrive at a time as fit into memory.
        at_once = max(1, gates.bodies.limit // settings.infer_max_bytes)
        few = max(1, at_once // 4)
        self._arrivals = Arrivals(at_once, seconds=settings.receive_timeout_seconds)
        # Calls that quotas ignore must not keep the messages of inference calls waiting.
        self._free_arrivals = Arrivals(few, seconds=settings.header_timeout_seconds)
        self._streams = Budget(at_once, what="streams")
        # Reflection needs no key, so its streams have a limit of their own.
        self.reflections = Budget(few, what="streams of reflection")
        self._unread = Budget(gates.bodies.limit, what="bytes of unread replies")
        self._open_calls = Budget(
            max(1, settings.max_connections // 2), what="calls that stay open"
        )
        self._stream_seconds = settings.receive_timeout_seconds

    async def serve_unary(
        self, method: Method, messages: AsyncIterator[bytes], context: Any
    ) -> bytes:
        """Return the reply's message. A failed call ends with the error's code and detail."""
        call = Call(context.time_remaining())
        with self._recorded(method, context, call):
            fault, reply = await self._serve(method, messages, context, call)
            try:
                if len(reply) > SMALL_BYTES:  # gRPC does not report how much of it is read
                    self._unread.take(len(reply))
                    context.add_done_callback(lambda _: self._unread.give_back(len(reply)))
            except PaddlepoolError as error:
                fault = call.fail(fault_of(error))
        if fault is not None:
            await end_call(context, fault, call.metadata)
        context.set_trailing_metadata(tuple(call.metadata.items()))
        return reply

    async def serve_stream(
        self, method: Method, messages: AsyncIterator[bytes], context: Any
    ) -> AsyncIterator[bytes | Failed]:
        """Yield, for each message of a stream in order, its reply, or Failed.

        Ends the call if its caller is rejected, too many streams are open, or the next message does
        not arrive within `receive_timeout_seconds`.
        """
        first = Call(context.time_remaining())
        with self._recorded(method, context, first):
            refusal: Fault | None = None
            try:
                await self._admit(method, context)
                with self._streams.held():
                    first.status = NOT_RECORDED  # each message is recorded instead
            except PaddlepoolError as error:
                refusal = first.fail(fault_of(error))
        if refusal is not None:
            await end_call(context, refusal, first.metadata)
        async with aclosing(self.received(messages, context, self._streams)) as arriving:
            async for message in arriving:
                call = Call(context.time_remaining())
                with self._recorded(method, context, call):
                    fault, reply = await self._serve(method, _only(message), context, call)
                yield reply if fault is None else Failed(fault, message)

    async def received(
        self, messages: AsyncIterator[bytes], context: Any, streams: Budget
    ) -> AsyncGenerator[bytes, None]:
        """Yield a stream's messages. Ends the call if `streams` is full or a message is late."""
        try:
            with streams.held(), suppress(StopAsyncIteration):
                while True:
                    async with asyncio.timeout(self._stream_seconds):
                        message = await anext(messages)
                    yield message
        except Overloaded as error:
            await end_call(context, fault_of(error))
        except TimeoutError:
            await end_call(context, http_fault(408, TOO_LATE))

    @asynccontextmanager
    async def keep_open(self, context: Any) -> AsyncIterator[None]:
        """Count a call of Watch or of reflection; end it if too many of them are open.

        These calls need no key by default and may stay open forever, so at most half as many as
        `max_connections` may be open.
        """
        with ExitStack() as places:
            try:
                places.enter_context(self._open_calls.held())
            except Overloaded as error:
                await end_call(context, fault_of(error))
            yield

    async def _serve(
        self, method: Method, messages: AsyncIterator[bytes], context: Any, call: Call
    ) -> tuple[Fault | None, bytes]:
        bucket = None
        try:
            await self._admit(method, context)
            bucket = self._gates.bucket(method.path)
            with nullcontext() if bucket is None else bucket.count_running():
                arrivals = self._free_arrivals if is_free(method.path) else self._arrivals
                message = await arrivals.next(messages)
                bodies = self._gates.bodies
                if len(message) > bodies.limit:
                    raise too_large(bodies.limit, len(message))
                with bodies.held(len(message)):
                    reply = await method.handler(message, call)
            call.status = 200
            return None, reply
        except PaddlepoolError as error:
            fault = fault_of(error)
        except TimeoutError:
            fault = http_fault(408, TOO_LATE)
        except Exception as error:
            log_failure(error, call.metadata["x-request-id"])
            fault = http_fault(500, INTERNAL)
        finally:  # even a rejected call's metadata has the remaining quota
            if bucket is not None:
                call.metadata |= {name.lower(): text for name, text in bucket.headers().items()}
        return call.fail(fault), b""

    async def _admit(self, method: Method, context: Any) -> None:
        """Set CALLER. Raises the errors of KeyRules.caller()."""
        headers, address = headers_of(context), ""
        kind, _, rest = context.peer().partition(":")
        if kind in ("ipv4", "ipv6"):
            host, _, port = urllib.parse.unquote(rest).rpartition(":")
            scope: Any = {"type": "http", "scheme": "http", "headers": headers.raw}
            scope["client"] = host.strip("[]"), int(port)
            # A trusted proxy reports the client's address.
            await self._proxy_headers(scope, _nothing, _nothing)
            address = str(scope["client"][0])
        CALLER.set(self._gates.keys.caller(method.path, headers, address))

    @contextmanager
    def _recorded(self, method: Method, context: Any, call: Call) -> Iterator[None]:
        """Give the call an id and a span; log and measure it unless its status is NOT_RECORDED."""
        began = time.perf_counter()
        headers = headers_of(context)
        request_id = request_id_of(headers.get("x-request-id"))
        call.metadata["x-request-id"] = request_id
        REQUEST_ID.set(request_id)
        if replica := self._services.settings.replica:
            call.metadata[REPLICA.lower()] = replica
        span = None if self._tracing is None else _begin_span(self._tracing, method, headers, call)
        try:
            yield
        except asyncio.CancelledError:
            late = call.within is not None and time.perf_counter() - began >= call.within
            call.status = 504 if late else CLIENT_GONE
            raise
        finally:
            if call.status:
                record(
                    self._services.metrics,
                    request_id=request_id,
                    method="POST",  # of every gRPC call
                    route=method.route,
                    status=call.status,
                    seconds=time.perf_counter() - began,
                    routine=is_routine(method.path),
                    sent={
                        LOGGED[name.encode()]: value
                        for name, value in call.metadata.items()
                        if name.encode() in LOGGED
                    },
                )
                if span is not None:
                    _end_span(span, method, call.status)


async def _only(message: bytes) -> AsyncIterator[bytes]:
    yield message


async def _nothing(*_: Any) -> Any:
    """An ASGI application that does nothing: only the changes of ProxyHeadersMiddleware matter."""


def headers_of(context: Any) -> Headers:
    """Return the client's metadata as HTTP headers, without binary values."""
    pairs = [(key, value) for key, value in context.invocation_metadata() if isinstance(value, str)]
    return Headers(raw=[(key.encode(), value.encode()) for key, value in pairs])


def _begin_span(
    tracing: Tracing, method: Method, headers: Headers, call: Call
) -> RequestSpan | None:
    """Begin a span; add a client's trace id to the metadata. None if is_free(method.path)."""
    if is_free(method.path):
        return None
    name = method.route.removeprefix("/")
    span = tracing.begin(name, headers.getlist, {"rpc.system.name": "grpc", "rpc.method": name})
    if span.has_parent:
        call.metadata[TRACE_ID.lower()] = span.trace_id
    return span


def _end_span(span: RequestSpan, method: Method, status: int) -> None:
    """End a span; `status` is the HTTP status that corresponds to the call's result."""
    code = grpc.StatusCode.CANCELLED if status == CLIENT_GONE else CODES.get(status)
    name = "OK" if code is None else code.name
    span.end(
        method.route.removeprefix("/"),
        {"rpc.response.status_code": name},
        error="" if code is None else name,
        failed=status >= 500,
    )


SMALL_BYTES = 64 * 1024
"""Replies up to this size, less than a connection's own buffers, do not count as unread. Health
calls therefore succeed even if unread replies have reached their limit."""


CANCELLED_WITHIN_SECONDS = 0.1
TOO_LATE = "The client did not send its message in time."


class Arrivals:
    """Limits how many messages arrive at the same time. Used from one event loop only."""

    def __init__(self, places: int, *, seconds: float) -> None:
        """At most `places` messages arrive at a time.

        A call has `seconds` to get a place and receive its message.
        """
        self._places = asyncio.Semaphore(places)
        self._limit = places
        self._seconds = seconds

    async def next(self, messages: AsyncIterator[bytes]) -> bytes:
        """Wait for a place and for the call's message; return the message.

        Raises Overloaded if no place became free in time, TimeoutError if the message did not
        arrive in time, and InvalidTensor if the call ends without a message.
        """
        has_place = False
        try:
            async with asyncio.timeout(self._seconds), self._places:
                has_place = True
                return await anext(messages)
        except StopAsyncIteration:
            # The messages of a cancelled call end, too, just before the handler is cancelled.
            await asyncio.sleep(CANCELLED_WITHIN_SECONDS)
            raise InvalidTensor("the call ended without a message") from None
        except TimeoutError:
            if has_place:
                raise
            raise Overloaded(f"{self._limit} messages are arriving; that is the limit") from None


async def end_call(context: Any, fault: Fault, metadata: Mapping[str, str] | None = None) -> None:
    """End a call with the fault's code and detail, and with `metadata`; None: metadata_of(fault).

    Never returns: `context.abort` raises an error that ends the handler.
    """
    metadata = metadata_of(fault) if metadata is None else metadata
    await context.abort(CODES[fault.status], fault.detail, tuple(metadata.items()))


CODES: Mapping[int, grpc.StatusCode] = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    409: grpc.StatusCode.FAILED_PRECONDITION,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,  # like gRPC's own message limit
    415: grpc.StatusCode.INVALID_ARGUMENT,
    422: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    500: grpc.StatusCode.INTERNAL,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
"""The gRPC code for an error, by its HTTP status."""

PUSHBACK = "grpc-retry-pushback-ms"
"""Metadata key: milliseconds after which a client with a retry policy retries."""


def metadata_of(fault: Fault) -> dict[str, str]:
    """Return an error's metadata: its stable code and, if the fault has it, when to retry."""
    metadata = {"error-code": fault.code}
    if (seconds := fault.headers.get("Retry-After")) is not None:
        metadata |= {"retry-after": seconds, PUSHBACK: str(1000 * int(seconds))}
    return metadata
