"""Limits on one request body and on all together; unknown encodings are rejected."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from starlette.datastructures import Headers

from app.contracts.errors import FileTooLarge, Overloaded, UnsupportedEncoding
from app.service.api.middleware.keys import KeyRules
from app.service.api.middleware.quotas import TokenBuckets

RETRY_SECONDS = 1.0


class Budget:
    """Limits what all requests hold together; rejects more with 503. For one event loop."""

    def __init__(self, limit: int, *, what: str) -> None:
        """`what` names the counted unit in error texts, such as "bytes of request bodies"."""
        self.limit = limit
        self.used = 0
        self._what = what

    def take(self, amount: int) -> None:
        """Reserve `amount`. Raises Overloaded, and reserves nothing, if less is left."""
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
        """Reserve `amount` within the context. Raises Overloaded."""
        self.take(amount)
        try:
            yield
        finally:
            self.give_back(amount)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gates:
    """The checks of every request, over HTTP and gRPC.

    Built once: both share the callers' quotas and the memory budget of request bodies.
    """

    keys: KeyRules
    buckets: TokenBuckets | None
    bodies: Budget


def check_body(headers: Headers, *, cap: int) -> None:
    """Check a body's headers before any of it is read; `cap` is in bytes.

    Raises UnsupportedEncoding and FileTooLarge.
    """
    # The list may be in one header or in several.
    codings = ",".join(headers.getlist("content-encoding")).lower().split(",")
    if not {coding.strip() for coding in codings} <= {"", "identity"}:
        raise UnsupportedEncoding("The body's Content-Encoding must be gzip or identity.")
    length = int(headers.get("content-length", "0"))  # the HTTP parser has validated it
    if length > cap:
        raise too_large(cap, length)


def too_large(cap: int, received: int | str) -> FileTooLarge:
    return FileTooLarge(
        f"The body has {received} bytes, the limit is {cap}.", limit=cap, received=received
    )
