"""How large a request body may be, counted while it streams; compressed bodies are refused."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.errors import fault_of
from app.api.problems import reply
from app.api.routes import RouteTable
from app.contracts.errors import FileTooLarge, InputError, UnsupportedEncoding


class BodyLimits:
    """Refuses by Content-Length at once and raises FileTooLarge at the first byte too many.

    A path without a route is answered by the router and its body never read.
    """

    def __init__(self, app: ASGIApp, *, routes: RouteTable) -> None:
        self._app = app
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (route := scope["state"]["route"]) is None:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        cap = self._routes.body_cap(route)
        refusal = _encoding_fault(headers) or _length_fault(headers, cap)
        if refusal is not None:
            await reply(fault_of(refusal), scope)(scope, receive, send)
            return
        received = 0

        async def receive_counted() -> Message:
            nonlocal received
            message = await receive()
            if message["type"] == "http.request":
                received += len(message.get("body", b""))
                if received > cap:
                    raise _too_large(cap, f"more than {cap}")
            return message

        await self._app(scope, receive_counted, send)


def _encoding_fault(headers: Headers) -> InputError | None:
    # A list may come in one header or in several.
    codings = ",".join(headers.getlist("content-encoding")).lower().split(",")
    if {coding.strip() for coding in codings} <= {"", "identity"}:
        return None
    return UnsupportedEncoding("The body must be sent with Content-Encoding: identity.")


def _length_fault(headers: Headers, cap: int) -> InputError | None:
    # The server's parser has checked that it is a number.
    length = int(headers.get("content-length", "0"))
    return _too_large(cap, length) if length > cap else None


def _too_large(cap: int, received: int | str) -> FileTooLarge:
    return FileTooLarge(
        f"The body has {received} bytes, the limit is {cap}.", limit=cap, received=received
    )
