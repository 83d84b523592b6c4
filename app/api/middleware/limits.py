"""How large a request body may be, and all together; compressed bodies are refused."""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.errors import fault_of
from app.api.middleware.body_budget import Arrival, BodyBudget, too_large
from app.api.problems import reply
from app.api.routes import RouteTable
from app.contracts.errors import InputError, UnsupportedEncoding


class BodyLimits:
    """Refuses by Content-Length at once and raises FileTooLarge at the first byte too many.

    A body that finds no room in the budget, or loses it to a faster one, gets 503. A path without a
    route is answered by the router and its body never read.
    """

    def __init__(self, app: ASGIApp, *, routes: RouteTable, budget: BodyBudget) -> None:
        self._app = app
        self._routes = routes
        self._budget = budget

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (route := scope["state"]["route"]) is None:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        cap = min(self._routes.body_cap(route), self._budget.limit)
        # The server's parser has checked that it is a number.
        length = int(headers.get("content-length", "0"))
        refusal = _encoding_fault(headers) or _length_fault(length, cap)
        if refusal is not None:
            await reply(fault_of(refusal), scope)(scope, receive, send)
            return
        budget, received = self._budget, 0
        arrival: Arrival | None = None

        async def receive_counted() -> Message:
            nonlocal received, arrival
            message = await receive()
            if message["type"] != "http.request":
                return message
            if size := len(message.get("body", b"")):
                received += size
                if received > cap:
                    raise too_large(cap, f"more than {cap}")
                arrival = arrival or budget.begin(length)
                budget.take(arrival, size)
            if arrival is not None and not message.get("more_body", False):
                budget.finish(arrival)
            return message

        try:
            await self._app(scope, receive_counted, send)
        except asyncio.CancelledError:
            if arrival is None or arrival.lost is None or arrival.task is None:
                raise
            if arrival.task.uncancel():
                raise  # its client has gone, too
            await reply(fault_of(arrival.lost), scope)(scope, receive, send)
        finally:
            if arrival is not None:
                budget.end(arrival)


def _encoding_fault(headers: Headers) -> InputError | None:
    # A list may come in one header or in several.
    codings = ",".join(headers.getlist("content-encoding")).lower().split(",")
    if {coding.strip() for coding in codings} <= {"", "identity"}:
        return None
    return UnsupportedEncoding("The body must be sent with Content-Encoding: identity.")


def _length_fault(length: int, cap: int) -> InputError | None:
    return too_large(cap, length) if length > cap else None
