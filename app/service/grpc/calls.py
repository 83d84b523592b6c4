"""The way of one call: whose it is, what it may take, its message, its answer, its line in the log.

A call's handler is given the stream of its messages, also where there is one alone: so a caller is
known, and refused, before a message of many megabytes is read.
"""

from __future__ import annotations

import asyncio
import time
import urllib.parse
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc
from starlette.datastructures import Headers
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from app.contracts.caller import CALLER
from app.contracts.errors import Overloaded, PaddlepoolError
from app.service.api.errors import INTERNAL, fault_of, http_fault, log_failure
from app.service.api.middleware.access import CLIENT_GONE, record, request_id_of
from app.service.api.middleware.keys import is_routine
from app.service.api.middleware.layer import REPLICA
from app.service.api.middleware.limits import Budget, Gates, too_large
from app.service.api.middleware.quotas import TokenBucket, is_free
from app.service.api.middleware.traced import TRACE_ID
from app.service.api.problems import Fault
from app.service.api.services import Services
from app.service.grpc.messages import SERVICE
from app.service.grpc.places import TOO_LATE, Arrivals, end_call, hold_reply, received
from app.service.grpc.status import CODES, metadata_of

if TYPE_CHECKING:  # an extra that most servers do without
    from app.observability.tracing import RequestSpan, Tracing

METHOD = "POST"
"""What gRPC is in HTTP/2."""

NOTHING_ASKED = 0
"""Neither logged nor measured."""

DEADLINE = 504


@dataclass(slots=True)
class Call:
    """One call, or one message of a stream. `within` are the seconds that its client waits."""

    within: float | None
    metadata: dict[str, str] = field(default_factory=dict)
    """Goes back behind the answer."""


Answer = Callable[[bytes, Call], Awaitable[bytes]]
"""From a message to the reply's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """`path` is that of the same request over HTTP, whose rules for keys and quotas hold here."""

    name: str
    path: str
    answer: Answer
    service: str = SERVICE

    @property
    def route(self) -> str:
        return f"/{self.service}/{self.name}"


class Calls:
    """Answers every call of the port; for one event loop."""

    def __init__(self, services: Services, gates: Gates, *, connections: int) -> None:
        """`connections` are as many calls as may be under way."""
        settings = services.settings
        self._services = services
        self._tracing = services.tracing
        self._gates = gates
        proxies = settings.proxies()
        self._told_by_proxies = (
            ProxyHeadersMiddleware(_nothing, trusted_hosts=proxies) if proxies else None
        )
        # Whole messages are assembled before they are seen: no more of them at one time than fit.
        at_once = max(1, gates.bodies.limit // settings.infer_max_bytes)
        few = max(1, at_once // 4)
        self._arrivals = Arrivals(at_once, seconds=settings.receive_timeout_seconds)
        # Calls that ask for no key take no places of those that ask for work.
        self._free_arrivals = Arrivals(few, seconds=settings.header_timeout_seconds)
        self._streams = Budget(at_once, what="streams")
        self._reflections = Budget(few, what="streams of reflection")
        self._unread = Budget(gates.bodies.limit, what="bytes of unread replies")
        self._kept = Budget(max(1, connections // 2), what="calls that stay open")
        self._stream_seconds = settings.receive_timeout_seconds

    async def answer(self, method: Method, messages: AsyncIterator[bytes], context: Any) -> bytes:
        """The reply to a call of one message. Ends the call with the error's code and words."""
        call = Call(context.time_remaining())
        fault: Fault | None = None
        with self._recorded(method, context, call) as state:
            fault, reply = await self._answer(method, messages, context, call)
            try:
                hold_reply(self._unread, len(reply), context)
            except PaddlepoolError as error:
                fault = fault_of(error)
                call.metadata |= metadata_of(fault)
            state["status"] = 200 if fault is None else fault.status
        metadata = tuple(call.metadata.items())
        if fault is not None:
            await context.abort(CODES[fault.status], fault.detail, metadata)
        context.set_trailing_metadata(metadata)
        return reply

    async def answer_each(
        self, method: Method, messages: AsyncIterator[bytes], context: Any
    ) -> AsyncIterator[bytes | Fault]:
        """The replies to a stream's messages, one after the other; a refused one is a fault, and
        the next is answered. Ends the call where it may not ask at all."""
        first = Call(context.time_remaining())
        if refusal := await self._refusal(method, context, first):
            await context.abort(
                CODES[refusal.status], refusal.detail, tuple(first.metadata.items())
            )
        seconds = self._stream_seconds
        messages = received(messages, context, self._streams, seconds=seconds)
        async with aclosing(messages) as arriving:
            async for message in arriving:
                call = Call(context.time_remaining())
                with self._recorded(method, context, call) as state:
                    fault, reply = await self._answer(method, _only(message), context, call)
                    state["status"] = 200 if fault is None else fault.status
                yield reply if fault is None else fault

    def reflected(
        self, messages: AsyncIterator[bytes], context: Any
    ) -> AsyncGenerator[bytes, None]:
        """The messages of a stream that asks for no key: it takes no place of those that do."""
        return received(messages, context, self._reflections, seconds=self._stream_seconds)

    @asynccontextmanager
    async def kept_open(self, context: Any) -> AsyncIterator[None]:
        """For a call that asks for no key and may stay as long as it likes: half of all calls are
        for those that ask for work. Ends the call where there are too many."""
        with ExitStack() as places:
            try:
                places.enter_context(self._kept.held())
            except Overloaded as error:
                await end_call(context, fault_of(error))
            yield

    async def _refusal(self, method: Method, context: Any, call: Call) -> Fault | None:
        """Why there may be no stream."""
        with self._recorded(method, context, call) as state:
            try:
                await self._admit(method, context)
                with self._streams.held():
                    pass  # there is a place
            except PaddlepoolError as error:
                fault = fault_of(error)
                state["status"] = fault.status
                call.metadata |= metadata_of(fault)
                return fault
            state["status"] = NOTHING_ASKED
        return None

    async def _answer(
        self, method: Method, messages: AsyncIterator[bytes], context: Any, call: Call
    ) -> tuple[Fault | None, bytes]:
        try:
            await self._admit(method, context)
            buckets = self._gates.buckets
            if buckets is None or is_free(method.path):
                return None, await self._reply(method, messages, call)
            bucket = buckets.of_caller()
            with _quota_told(bucket, call), buckets.running(bucket):
                return None, await self._reply(method, messages, call)
        except PaddlepoolError as error:
            fault = fault_of(error)
        except TimeoutError:
            fault = http_fault(408, TOO_LATE)
        except Exception as error:
            log_failure(error, call.metadata["x-request-id"])
            fault = http_fault(500, INTERNAL)
        call.metadata |= metadata_of(fault)
        return fault, b""

    async def _admit(self, method: Method, context: Any) -> None:
        """Say whose call it is. Raises Unauthorized and Forbidden."""
        headers = headers_of(context)
        address = await self._address(context, headers)
        CALLER.set(self._gates.keys.caller(method.path, headers, address))

    async def _reply(self, method: Method, messages: AsyncIterator[bytes], call: Call) -> bytes:
        arrivals = self._free_arrivals if is_free(method.path) else self._arrivals
        message = await arrivals.next(messages)
        bodies = self._gates.bodies
        if len(message) > bodies.limit:
            raise too_large(bodies.limit, len(message))
        with bodies.held(len(message)):
            return await method.answer(message, call)

    async def _address(self, context: Any, headers: Headers) -> str:
        """The client's, which a trusted proxy tells."""
        kind, _, rest = context.peer().partition(":")
        host, _, port = urllib.parse.unquote(rest).rpartition(":")
        if kind not in ("ipv4", "ipv6"):
            return ""
        if self._told_by_proxies is None:
            return host.strip("[]")
        client = (host.strip("[]"), int(port))
        scope: Any = {"type": "http", "client": client, "headers": headers.raw, "scheme": "http"}
        await self._told_by_proxies(scope, _nothing, _nothing)
        return str(scope["client"][0])

    @contextmanager
    def _recorded(self, method: Method, context: Any, call: Call) -> Iterator[dict[str, int]]:
        """Log and measure what happens inside; `status` as NOTHING_ASKED leaves it out."""
        began = time.perf_counter()
        headers = headers_of(context)
        request_id = request_id_of(headers.get("x-request-id"))
        call.metadata["x-request-id"] = request_id
        if replica := self._services.settings.replica:
            call.metadata[REPLICA.lower()] = replica
        state = {"status": 500}
        span = None if self._tracing is None else _begin_span(self._tracing, method, headers, call)
        try:
            yield state
        except asyncio.CancelledError:
            late = call.within is not None and time.perf_counter() - began >= call.within
            state["status"] = DEADLINE if late else CLIENT_GONE
            raise
        finally:
            if state["status"]:
                sent = ("x-model", "x-predictor", "server-timing")
                record(
                    self._services.metrics,
                    request_id=request_id,
                    method=METHOD,
                    route=method.route,
                    status=state["status"],
                    seconds=time.perf_counter() - began,
                    routine=is_routine(method.path),
                    sent={
                        name.replace("-", "_"): call.metadata[name]
                        for name in sent
                        if name in call.metadata
                    },
                )
                if span is not None:
                    _end_span(span, method, state["status"])


async def _only(message: bytes) -> AsyncIterator[bytes]:
    yield message


async def _nothing(*_: Any) -> Any:
    """An application of no effect: the layer before it has changed the scope."""


@contextmanager
def _quota_told(bucket: TokenBucket, call: Call) -> Iterator[None]:
    """Tell the caller what is left, also where the call is refused."""
    try:
        yield
    finally:
        call.metadata |= {name.lower(): value for name, value in bucket.headers().items()}


def headers_of(context: Any) -> Headers:
    """What the client sent along, as HTTP headers, without what is binary: none of it is ours."""
    pairs = [(key, value) for key, value in context.invocation_metadata() if isinstance(value, str)]
    return Headers(raw=[(key.encode(), value.encode()) for key, value in pairs])


def unary(calls: Calls, method: Method) -> grpc.RpcMethodHandler:
    """A handler without parsers: messages are bytes."""

    async def handle(messages: AsyncIterator[bytes], context: Any) -> bytes:
        return await calls.answer(method, messages, context)

    return grpc.stream_unary_rpc_method_handler(handle)


def _begin_span(
    tracing: Tracing, method: Method, headers: Headers, call: Call
) -> RequestSpan | None:
    """None for what quotas do not count, as over HTTP."""
    if is_free(method.path):
        return None
    name = method.route.removeprefix("/")
    span = tracing.begin(name, headers.getlist, {"rpc.system.name": "grpc", "rpc.method": name})
    if span.given:
        call.metadata[TRACE_ID.lower()] = span.trace_id
    return span


def _end_span(span: RequestSpan, method: Method, status: int) -> None:
    """`status` is that of the same request over HTTP."""
    code = grpc.StatusCode.CANCELLED if status == CLIENT_GONE else CODES.get(status)
    name = "OK" if code is None else code.name
    span.end(
        method.route.removeprefix("/"),
        {"rpc.response.status_code": name},
        error="" if code is None else name,
        failed=status >= 500,
    )
