"""The outermost layer of a request: its id, its log line, its duration, its last resort."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from collections.abc import Mapping

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.errors import INTERNAL, http_fault, log_failure
from app.api.problems import reply
from app.api.routes import RouteTable
from app.api.services import Lifecycle
from app.contracts.ports import Clock
from app.observability.metrics import METHODS, OTHER, UNMATCHED, Metrics

REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
CLIENT_GONE = 499
log = logging.getLogger("paddlepool.access")


class Access:
    """Gives every request an id and every reply its headers; logs and measures each one.

    The line holds no path, query, text or file name of the client, only the route's template.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        routes: RouteTable,
        metrics: Metrics,
        lifecycle: Lifecycle,
        clock: Clock = time.perf_counter,
    ) -> None:
        self._app = app
        self._routes = routes
        self._metrics = metrics
        self._lifecycle = lifecycle
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = self._clock()
        request_id = request_id_of(Headers(scope=scope).get("x-request-id"))
        route = self._routes.find(scope["path"])
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        state["route"] = route
        state["errors"] = route.errors if route else None
        status = 0
        sent: dict[str, str] = {}

        async def send_marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-ID"] = request_id
                headers["X-Content-Type-Options"] = "nosniff"
                if self._lifecycle.draining:
                    headers["Connection"] = "close"
                for name in ("x-model", "x-predictor", "server-timing"):
                    if name in headers:
                        sent[name.replace("-", "_")] = headers[name]
            await send(message)

        try:
            await self._app(_as_get(scope), receive, send_marked)
        except asyncio.CancelledError:
            # The server is closing and this request's time is up.
            if not status:
                fault = http_fault(503, "The server is shutting down.", {"Retry-After": "1"})
                await reply(fault, scope)(scope, receive, send_marked)
            raise
        except Exception as error:
            if state.get("client_gone"):
                return  # what failed is reading from, or writing to, somebody who has left
            log_failure(error, request_id)
            if status:
                raise  # half a reply is out; only closing the connection tells the client
            await reply(http_fault(500, INTERNAL), scope)(scope, receive, send_marked)
        finally:
            if state.get("client_gone"):
                status = CLIENT_GONE
            route = state["route"]  # None where it was refused before it came to one
            record(
                self._metrics,
                request_id=request_id,
                method=scope["method"],
                route=route.template if route else None,
                status=status or 500,
                seconds=self._clock() - started,
                sent=sent,
            )


def record(
    metrics: Metrics,
    *,
    request_id: str,
    method: str,
    route: str | None,
    status: int,
    seconds: float,
    sent: Mapping[str, str],
) -> None:
    """Measure and log one request that has ended; `sent` says where its answer came from."""
    metrics.request_done(route=route, method=method, status=status, seconds=seconds)
    log.info(
        "request",
        extra={
            "request_id": request_id,
            "method": method if method in METHODS else OTHER,
            "route": route or UNMATCHED,
            "status": status,
            "milliseconds": round(seconds * 1000, 2),
            **sent,
        },
    )


def _as_get(scope: Scope) -> Scope:
    """HEAD is answered as GET is; the server, which knows better, leaves the body out."""
    return {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope


def request_id_of(offered: str | None) -> str:
    if offered is not None and REQUEST_ID.fullmatch(offered):
        return offered
    return secrets.token_hex(8)
