"""How large a request body may be, and all together; unknown encodings are refused."""

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


def check_body(headers: Headers, *, cap: int) -> None:
    """Refuse a body by its headers, before any of it is read; `cap` in bytes.

    Raises UnsupportedEncoding and FileTooLarge.
    """
    # A list may come in one header or in several.
    codings = ",".join(headers.getlist("content-encoding")).lower().split(",")
    if not {coding.strip() for coding in codings} <= {"", "identity"}:
        raise UnsupportedEncoding("The body's Content-Encoding must be gzip or identity.")
    length = int(headers.get("content-length", "0"))  # the server's parser has checked it
    if length > cap:
        raise too_large(cap, length)


def too_large(cap: int, received: int | str) -> FileTooLarge:
    return FileTooLarge(
        f"The body has {received} bytes, the limit is {cap}.", limit=cap, received=received
    )
