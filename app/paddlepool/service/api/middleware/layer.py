"""ASGI layers around the routes: request log, admission, and path rewriting by User-Agent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from paddlepool.contracts.caller import CALLER, REQUEST_ID
from paddlepool.observability.metrics import METHODS
from paddlepool.service.api.errors import Fault, fault_from, http_fault, log_failure, reply
from paddlepool.service.api.middleware.compression import unpacked
from paddlepool.service.api.middleware.exchange import CLIENT_GONE, Exchange, record
from paddlepool.service.api.middleware.keys import Sites, is_routine
from paddlepool.service.api.middleware.limits import Gates, check_body, is_free
from paddlepool.service.api.routes import RouteTable
from paddlepool.service.api.services import Services
from paddlepool.settings.server import Settings

if TYPE_CHECKING:  # an optional extra
    from paddlepool.observability.tracing import RequestSpan

REPLICA, TRACE_ID = "X-Replica", "X-Trace-ID"


class RequestLog:
    """Assigns each request its id, route and Exchange; logs and measures it when it ends.

    HEAD is handled as GET, and a gzip body is decompressed. If tracing is on, each request has a
    span, except for the paths that is_free() names. If the client began the trace, the reply has
    the trace's id. The span has only the route's template: no path, query, text or file name of the
    client.
    """

    def __init__(
        self, app: ASGIApp, *, services: Services, routes: RouteTable, gates: Gates
    ) -> None:
        self._app = app
        self._services = services
        self._routes = routes
        self._gates = gates
        self._common_headers = [(b"x-content-type-options", b"nosniff")]
        if replica := services.settings.replica:
            self._common_headers.append((REPLICA.lower().encode(), replica.encode()))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, method = time.perf_counter(), scope["method"]
        if method == "HEAD":  # handled like GET; the HTTP server omits the body
            scope = {**scope, "method": "GET"}
        scope, receive = unpacked(scope, receive)
        known = method if method in METHODS else "_OTHER"
        span = self._begin_span(scope, known)
        common = self._common_headers
        if span is not None and span.has_parent:
            common = [*common, (TRACE_ID.lower().encode(), span.trace_id.encode())]
        route = self._routes.find(scope["path"], scope["method"])
        cap = route.max_body if route else self._routes.default_max_body
        exchange = Exchange(
            scope,
            receive,
            send,
            body_cap=min(cap, self._gates.bodies.limit),
            bodies=self._gates.bodies,
            lifecycle=self._services.lifecycle,
            common_headers=common,
        )
        state = scope.setdefault("state", {})
        state |= {"exchange": exchange, "request_id": exchange.request_id, "route": route}
        state["errors"] = route.errors if route else None
        try:
            await self._app(scope, exchange.receive, exchange.send)
        except asyncio.CancelledError:
            if exchange.was_cancelled():
                return
            if not exchange.status:  # the drain timeout is over
                fault = http_fault(503, "The server is shutting down.", {"Retry-After": "1"})
                await reply(fault, scope)(scope, exchange.receive, exchange.send)
            raise
        finally:
            exchange.close()
            route = state["route"]
            if (refusal := state.get("refusal")) is not None:  # the HTTP server has replied
                exchange.status, exchange.client_gone = refusal.status, False
                state["fault"] = refusal
            record(
                self._services.metrics,
                request_id=exchange.request_id,
                method=method,
                route=route.template if route else None,
                status=CLIENT_GONE if exchange.client_gone else exchange.status or 500,
                seconds=time.perf_counter() - began,
                routine=is_routine(scope["path"]),
                sent=exchange.sent,
            )
            if span is not None:
                _end_span(span, known, exchange, state)

    def _begin_span(self, scope: Scope, method: str) -> RequestSpan | None:
        """Begin a span; return None without tracing, and for the paths that is_free() names."""
        if self._services.tracing is None or is_free(scope["path"]):
            return None
        attributes = {"http.request.method": method, "url.scheme": scope["scheme"]}
        return self._services.tracing.begin(method, Headers(scope=scope).getlist, attributes)


def _end_span(span: RequestSpan, method: str, exchange: Exchange, state: Mapping[str, Any]) -> None:
    fault: Fault | None = state.get("fault")
    route = state["route"]
    attributes: dict[str, str | int] = {"http.route": route.template} if route else {}
    if exchange.status:
        attributes["http.response.status_code"] = exchange.status
    failed = not exchange.client_gone and not 0 < exchange.status < 500
    error = fault.code if fault else ""
    span.end(
        f"{method} {route.template}" if route else method,
        attributes,
        error="client_gone" if exchange.client_gone else error,
        failed=failed,
        why=fault.detail if fault and failed else "",
    )


class Admission:
    """Checks a request (site, key, quota, body size), then calls its route.

    Replies with the error if a check fails, there is no route, or the route raises an error before
    its reply has begun. Routes are called directly: FastAPI's router would take more time than all
    these checks, and receives only the lifespan.
    """

    def __init__(
        self, app: ASGIApp, *, settings: Settings, routes: RouteTable, gates: Gates
    ) -> None:
        self._app = app
        self._routes = routes
        self._gates = gates
        self._sites = Sites(hosts=settings.hosts(), origins=settings.cors_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope["state"]
        exchange: Exchange = state["exchange"]
        path, client = scope["path"], scope["client"]
        try:
            if (refusal := self._sites.refusal(scope)) is not None:
                state["route"] = None  # counted as unmatched: no route may answer it
                raise refusal
            if scope["method"] == "TRACE" and state["route"] is not None:
                self._routes.check_method(state["route"], path, "TRACE")  # 405 even without a key
            address = client[0] if client else ""
            CALLER.set(self._gates.keys.caller(path, exchange.headers, address))
            REQUEST_ID.set(str(state["request_id"]))
            exchange.bucket = bucket = self._gates.bucket(path)
            with nullcontext() if bucket is None else bucket.count_running():
                if state["route"] is not None:
                    check_body(exchange.headers, cap=exchange.body_cap)
                await self._routes.handle(state["route"], scope, receive, send)
        except Exception as error:
            if exchange.client_gone:
                return  # the error came from reading from or writing to a disconnected client
            if exchange.status:
                log_failure(error, exchange.request_id)
                raise  # the reply is partly sent; only closing the connection signals the error
            await reply(fault_from(error, exchange.request_id), scope)(scope, receive, send)


def redirect_agents(app: ASGIApp, paths: Mapping[str, tuple[str, Sequence[bytes]]]) -> ASGIApp:
    """Return an application that replaces the paths of some clients' requests and calls `app`.

    `paths` maps a path to its replacement and to texts. The path is replaced if the request's
    User-Agent contains one of the texts. GET and HEAD requests keep their path, because browsers
    use them to load pages.
    """

    def redirected(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        redirect = paths.get(scope["path"]) if scope["type"] == "http" else None
        if redirect is not None and scope["method"] not in ("GET", "HEAD"):
            path, agents = redirect
            agent = next((value for name, value in scope["headers"] if name == b"user-agent"), b"")
            if any(part in agent for part in agents):
                scope = {**scope, "path": path}
        return app(scope, receive, send)

    return redirected
