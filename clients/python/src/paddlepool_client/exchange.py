"""The exchange of a request and its reply: when to retry, and which error to raise.

It is one coroutine over a `Wire`. AsyncClient awaits it. The wire of Client never suspends, so that
its coroutine finishes in one step.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Protocol, TypeVar

import httpx

from paddlepool_client.calls import Call
from paddlepool_client.errors import (
    InvalidReply,
    RequestFailed,
    Unavailable,
    Unreachable,
    api_error,
)

T = TypeVar("T")

NEVER_SENT = (httpx.UnsupportedProtocol, httpx.LocalProtocolError)
"""Errors that a retry cannot fix."""

LATE = (httpx.ReadTimeout, httpx.WriteTimeout)
"""Errors after which the server has the request, or a part of it. A second request would add to the
work that delays the first."""

NO_CONNECTION = (httpx.ConnectError, httpx.ConnectTimeout)
"""Errors after which the server has nothing of the request."""

MAX_WAIT_SECONDS = 30.0
"""Maximum delay before a retry. If the server asks for a longer one, the request is not retried."""


@dataclass(frozen=True, slots=True)
class Retries:
    """How often and after which delay to retry a 429, a 503 or a refused or lost connection.

    `attempts` includes the first one; 1 never retries. `base_seconds` is the first delay if the
    server names none; it doubles each time, up to MAX_WAIT_SECONDS. Up to a quarter of a delay is
    added at random. A request whose reply is late is not retried, nor one whose reply names a delay
    above MAX_WAIT_SECONDS. Raises ValueError if `attempts` is below 1.
    """

    attempts: int = 5
    base_seconds: float = 0.25

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"attempts must be at least 1, received {self.attempts}")


class Wire(Protocol):
    """Port for I/O: builds and sends requests, waits, and reads files.

    `url` is the server's address, for messages.
    """

    url: str

    def build(
        self, call: Call[Any], body: bytes | None, files: Sequence[tuple[str, bytes]]
    ) -> httpx.Request: ...

    async def send(self, request: httpx.Request) -> httpx.Response: ...

    async def sleep(self, seconds: float) -> None: ...

    async def read(self, path: Path) -> bytes: ...


async def exchange(call: Call[T], wire: Wire, retries: Retries) -> T:
    """Send a call, again as often as `retries` allows; return its result.

    If the program traces with OpenTelemetry, the request carries its current span. Raises
    RequestFailed, and OSError for an unreadable file.
    """
    body = None if call.body is None else await _loaded(call.body, wire)
    files = [(name, await _loaded(content, wire)) for name, content in call.files]
    try:
        request = wire.build(call, body, files)
    except (UnicodeEncodeError, httpx.InvalidURL) as error:
        raise Unreachable(_words(error)) from error
    # A program with a current span has imported this module.
    if "opentelemetry.trace" in sys.modules:
        from opentelemetry import propagate

        propagate.inject(request.headers)
    for attempt in count(1):
        outcome = await _attempt(request, wire)
        if isinstance(outcome, httpx.Response):
            if outcome.is_success or outcome.status_code in call.accepted:
                return _read(call, outcome)
            outcome = api_error(outcome)
        wait = _wait(outcome, attempt, retries)
        if wait is None:
            raise outcome
        await wire.sleep(wait)
    raise AssertionError("this is a bug: an endless loop ended")


def completed(exchange: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine whose wire never suspends."""
    try:
        exchange.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    exchange.close()
    raise AssertionError("this is a bug: a blocking wire suspended")


async def _loaded(content: bytes | Path, wire: Wire) -> bytes:
    return await wire.read(content) if isinstance(content, Path) else content


async def _attempt(request: httpx.Request, wire: Wire) -> httpx.Response | RequestFailed:
    """Return a reply, or a retryable error. Raises Unreachable or InvalidReply for other errors."""
    try:
        return await wire.send(request)
    except NEVER_SENT as error:
        raise Unreachable(f"cannot send to {wire.url} ({_words(error)})") from error
    except httpx.TransportError as error:
        what = "no server at" if isinstance(error, NO_CONNECTION) else "no reply from"
        lost = Unreachable(f"{what} {wire.url} ({_words(error)})")
        lost.__cause__ = error
        if isinstance(error, LATE):
            raise lost from error
        return lost
    except httpx.RequestError as error:
        raise InvalidReply(f"{without_user(request.url)}: {_words(error)}") from error


def _wait(failure: RequestFailed, attempt: int, retries: Retries) -> float | None:
    """Return the seconds until the next attempt; None if there is none."""
    if attempt >= retries.attempts or not isinstance(failure, Unavailable | Unreachable):
        return None
    seconds = failure.retry_after if isinstance(failure, Unavailable) else None
    if seconds is None:
        # Cap the exponent first: the power of a large attempt number would overflow.
        seconds = min(retries.base_seconds * 2.0 ** min(attempt - 1, 30), MAX_WAIT_SECONDS)
    elif seconds > MAX_WAIT_SECONDS:
        return None
    # Jitter only adds: an earlier retry would be rejected again.
    return seconds * (1.0 + 0.25 * random.random())


def _read(call: Call[T], response: httpx.Response) -> T:
    try:
        return call.read(response)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        message = f"{response.status_code}, but no reply of Paddlepool ({error!r})"
        raise InvalidReply(f"{without_user(response.url)}: {message}") from error


def without_user(url: httpx.URL) -> httpx.URL:
    """Return the address for a message: without user name and password."""
    return url.copy_with(userinfo=b"")


def _words(error: Exception) -> str:
    """Return the error's message, or its class: httpx leaves some messages empty."""
    return str(error) or type(error).__name__
