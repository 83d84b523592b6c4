"""How large a request body may be, and all together; unknown encodings are refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.errors import fault_of
from app.api.middleware.keys import KeyRules
from app.api.middleware.quotas import TokenBuckets
from app.api.problems import reply
from app.api.routes import RouteTable
from app.contracts.errors import FileTooLarge, InputError, Overloaded, UnsupportedEncoding

RETRY_SECONDS = 1.0


class Budget:
    """A count of what all requests hold together, and 503 beyond its limit; for one event loop."""

    def __init__(self, limit: int, *, what: str) -> None:
        """`what` is counted, in the words of a refusal: "bytes of request bodies"."""
        self.limit = limit
        self.used = 0
        self._what = what

    def take(self, amount: int) -> None:
        """Raises Overloaded, and takes nothing, where less is left."""
        wanted = self.used + amount
        if wanted > self.limit:
            raise Overloaded(
                f"{self.used} {self._what} are held and {amount} more asked for; the limit is "
                f"{self.limit}",
                retry_after=RETRY_SECONDS,
                limit=self.limit,
                received=wanted,
            )
        self.used = wanted

    def give_back(self, amount: int) -> None:
        self.used -= amount

    @contextmanager
    def held(self, amount: int = 1) -> Iterator[None]:
        """Raises Overloaded."""
        self.take(amount)
        try:
            yield
        finally:
            self.give_back(amount)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gates:
    """What requests pass, whichever door they come through.

    Built once: doors share what callers have left, and the memory of request bodies.
    """

    keys: KeyRules
    buckets: TokenBuckets | None
    bodies: Budget


class BodyLimits:
    """Refuses by Content-Length at once and raises FileTooLarge at the first byte too many.

    A body counts in the budget as it arrives and until its request is answered; one that finds no
    room there gets 503. The router answers a path without a route, and never reads the body.
    """

    def __init__(self, app: ASGIApp, *, routes: RouteTable, budget: Budget) -> None:
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
        received = 0

        async def receive_counted() -> Message:
            nonlocal received
            message = await receive()
            if message["type"] == "http.request" and (size := len(message.get("body", b""))):
                if received + size > cap:
                    raise too_large(cap, f"more than {cap}")
                self._budget.take(size)
                received += size
            return message

        try:
            await self._app(scope, receive_counted, send)
        finally:
            self._budget.give_back(received)


def _encoding_fault(headers: Headers) -> InputError | None:
    # A list may come in one header or in several.
    codings = ",".join(headers.getlist("content-encoding")).lower().split(",")
    if {coding.strip() for coding in codings} <= {"", "identity"}:
        return None
    return UnsupportedEncoding("The body's Content-Encoding must be gzip or identity.")


def _length_fault(length: int, cap: int) -> InputError | None:
    return too_large(cap, length) if length > cap else None


def too_large(cap: int, received: int | str) -> FileTooLarge:
    return FileTooLarge(
        f"The body has {received} bytes, the limit is {cap}.", limit=cap, received=received
    )
