"""Limits on request bodies, and quotas of each caller."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from starlette.datastructures import Headers

from paddlepool.contracts.caller import CALLER
from paddlepool.contracts.errors import FileTooLarge, Overloaded, QuotaExceeded, UnsupportedEncoding
from paddlepool.contracts.ports import Clock
from paddlepool.service.api.middleware.keys import ADMIN_PREFIX, KeyRules, is_open


class Budget:
    """An amount, such as a number of bytes, of which all requests together may use `limit`.

    More is rejected with 503. Used from one event loop only.
    """

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
                f"{self.used} {self._what} are in use and {amount} more were requested; "
                f"the limit is {self.limit}",
                limit=self.limit,
                received=wanted,
            )
        self.used = wanted

    def give_back(self, amount: int) -> None:
        self.used -= amount

    @contextmanager
    def held(self, amount: int = 1) -> Iterator[None]:
        """Reserve `amount` while the context is open. Raises Overloaded as take() does."""
        self.take(amount)
        try:
            yield
        finally:
            self.give_back(amount)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gates:
    """The checks of every request, built once, so that HTTP and gRPC share quotas and memory."""

    keys: KeyRules
    buckets: TokenBuckets | None
    bodies: Budget

    def bucket(self, path: str) -> TokenBucket | None:
        """Return the current caller's bucket; None if no quota is set or quotas ignore the path.

        The bucket is also stored in CALLER, where pipelines find it.
        """
        if self.buckets is None or is_free(path):
            return None
        caller = CALLER.get()
        bucket = self.buckets.of(caller.name)
        CALLER.set(replace(caller, quota=bucket))
        return bucket


def check_body(headers: Headers, *, cap: int) -> None:
    """Check a body's headers before the body is read.

    Raises UnsupportedEncoding for a Content-Encoding other than identity, and FileTooLarge if
    Content-Length exceeds `cap` bytes. For a gzip body, compression.unpacked() has removed both
    headers before.
    """
    length = 0
    for name, value in headers.raw:
        if name == b"content-encoding":  # one header or several
            if not {coding.strip().lower() for coding in value.split(b",")} <= {b"", b"identity"}:
                raise UnsupportedEncoding("The body's Content-Encoding must be gzip or identity.")
        elif name == b"content-length":
            length = int(value)  # the HTTP parser has validated it
    if length > cap:
        raise too_large(cap, length)


def too_large(cap: int, received: int | str) -> FileTooLarge:
    detail = f"The body has {received} bytes, the limit is {cap}."
    return FileTooLarge(detail, limit=cap, received=received)


MINUTE = 60.0
MAX_CALLERS = 10_000
"""Maximum callers with a bucket. Beyond it, the caller seen least recently loses its bucket and
gets a full one with its next request."""


class TokenBucket:
    """What one caller may still spend of each unit, such as pixels. Implements Quota.

    `limits` are per minute and refilled over time; the amount of a whole minute may be spent at
    once. While at least 1 is left, a request may spend more than is left, because the cost of a
    picture is known only after it is opened. The debt must be refilled before the next
    request. At most `concurrent` requests run at the same time (0: any number).
    """

    def __init__(
        self, limits: Mapping[str, int], concurrent: int = 0, clock: Clock = time.monotonic
    ) -> None:
        self._limits = limits
        self._concurrent = concurrent
        self._left = {what: float(limit) for what, limit in limits.items()}
        self._clock = clock
        self._refilled = clock()
        self.running = 0

    def _refill(self) -> None:
        now = self._clock()
        minutes, self._refilled = (now - self._refilled) / MINUTE, now
        for what, limit in self._limits.items():
            self._left[what] = min(limit, self._left[what] + minutes * limit)

    def _seconds_until(self, amount: float, what: str) -> float:
        return max(0.0, (amount - self._left[what]) * MINUTE / self._limits[what])

    def spend(self, what: str, amount: int) -> None:
        if what not in self._limits:
            return
        self._refill()
        if self._left[what] < 1:
            limit = self._limits[what]
            raise QuotaExceeded(
                f"the quota of {limit} {what} a minute is used up",
                retry_after=self._seconds_until(1, what),
                limit=limit,
            )
        self._left[what] -= amount

    @contextmanager
    def count_running(self) -> Iterator[None]:
        """Spend one request, and count it while it runs.

        Raises QuotaExceeded, before any work begins, if any unit is used up or too many run.
        """
        limit = self._concurrent
        if limit and self.running >= limit:
            raise QuotaExceeded(
                f"{self.running} requests of this caller are running, the limit is {limit}",
                limit=limit,
                received=self.running + 1,
            )
        for what in self._limits:
            self.spend(what, 0)  # any unit may be used up
        self.spend("requests", 1)
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1

    def headers(self) -> dict[str, str]:
        """Return the RateLimit headers of the unit with the smallest share left; {} without limits.

        RateLimit-Reset is the seconds until the whole limit is available again.
        """
        if not self._limits:
            return {}
        self._refill()
        what = min(self._limits, key=lambda unit: self._left[unit] / self._limits[unit])
        limit = self._limits[what]
        return {
            "RateLimit-Limit": str(limit),
            "RateLimit-Remaining": str(max(0, math.floor(self._left[what]))),
            "RateLimit-Reset": str(math.ceil(self._seconds_until(limit, what))),
        }


class TokenBuckets:
    """The bucket of each caller, shared by HTTP and gRPC. Used from one event loop only."""

    def __init__(self, per_minute: Mapping[str, int], concurrent: int = 0) -> None:
        """Limit each caller's units per minute, such as {"pixels": 1_000_000}.

        `concurrent` limits each caller's concurrent requests; 0 allows any number.
        """
        self._per_minute = per_minute
        self._concurrent = concurrent
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def of(self, name: str) -> TokenBucket:
        bucket = self._buckets.get(name)
        if bucket is None:
            bucket = self._buckets[name] = TokenBucket(self._per_minute, self._concurrent)
            if len(self._buckets) > MAX_CALLERS:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(name)
        return bucket


def is_free(path: str) -> bool:
    """Return whether quotas ignore the path: that of a probe, metrics, a page or model control."""
    return is_open(path) or path.startswith(ADMIN_PREFIX)
