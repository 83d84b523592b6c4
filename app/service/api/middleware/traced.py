"""The outermost layer if tracing is on: creates a span for each request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.observability.metrics import METHODS
from app.service.api.middleware.quotas import is_free
from app.service.api.problems import Fault

if TYPE_CHECKING:  # an optional extra
    from app.observability.tracing import Tracing

TRACE_ID = "X-Trace-ID"


class Traced:
    """Creates a span for each request that quotas count, so not for probes, scrapes and pages.

    If the client began the trace, the reply has the trace's id. The span has only the route's
    template: no path, query, text or file name of the client.
    """

    def __init__(self, app: ASGIApp, *, tracing: Tracing) -> None:
        self._app = app
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or is_free(scope["path"]):
            await self._app(scope, receive, send)
            return
        method = scope["method"] if scope["method"] in METHODS else "_OTHER"
        span = self._tracing.begin(
            method,
            Headers(scope=scope).getlist,
            {"http.request.method": method, "url.scheme": scope["scheme"]},
        )
        status = 0

        async def send_seen(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if span.given:
                    MutableHeaders(scope=message)[TRACE_ID] = span.trace_id
            await send(message)

        try:
            await self._app(scope, receive, send_seen)
        finally:
            state = scope["state"]
            fault: Fault | None = state.get("fault")
            attributes: dict[str, str | int] = {}
            if route := state.get("route"):
                attributes["http.route"] = route.template
            if status:
                attributes["http.response.status_code"] = status
            if state["exchange"].client_gone:
                error, failed = "client_gone", False
            else:
                error, failed = fault.code if fault else "", not 0 < status < 500
            span.end(
                f"{method} {route.template}" if route else method,
                attributes,
                error=error,
                failed=failed,
                why=fault.detail if fault and failed else "",
            )
