"""The one way from a call to its answer: when to try again, and what to raise.

Written once, as a coroutine over a `Wire`. AsyncClient awaits it. Client's wire never suspends, so
that its coroutine ends at the first step.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Coroutine, Mapping
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
"""Requests that no other attempt would make right."""

MAX_WAIT_SECONDS = 30.0
"""A server that wants more than this is not waited for."""


@dataclass(frozen=True, slots=True)
class Retries:
    """How often and how patiently a 429, a 503 or a lost connection is tried again.

    `attempts` counts the first one; 1 never tries again. `base_seconds` is the first wait where the
    server names none, and doubles each time.
    """

    attempts: int = 5
    base_seconds: float = 0.25

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"attempts must be at least 1, received {self.attempts}")


class Wire(Protocol):
    """Port for sending bytes and waiting."""

    def build(
        self, call: Call[Any], body: bytes | None, files: Mapping[str, bytes]
    ) -> httpx.Request: ...

    async def send(self, request: httpx.Request) -> httpx.Response: ...

    async def sleep(self, seconds: float) -> None: ...

    async def read(self, path: Path) -> bytes: ...


async def exchange(call: Call[T], wire: Wire, retries: Retries) -> T:
    """Send until there is an answer. Raises RequestFailed, and OSError for a file to be sent."""
    body = None if call.body is None else await _loaded(call.body, wire)
    files = {name: await _loaded(content, wire) for name, content in call.files.items()}
    try:
        request = wire.build(call, body, files)
    except (UnicodeEncodeError, httpx.InvalidURL) as error:
        raise Unreachable(_words(error)) from error
    # A program that has a current span has imported this module.
    if "opentelemetry.trace" in sys.modules:
        from opentelemetry import propagate

        propagate.inject(request.headers)
    for attempt in count(1):
        outcome = await _attempt(request, wire)
        if isinstance(outcome, httpx.Response):
            if outcome.is_success or outcome.status_code in call.answers:
                return _read(call, outcome)
            outcome = api_error(outcome)
        wait = _wait(outcome, attempt, retries)
        if wait is None:
            raise outcome
        await wire.sleep(wait)
    raise AssertionError("this is a bug: an endless loop ended")


def completed(exchange: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine whose wire never suspends."""
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
    """A reply or why there is none. Raises what another attempt would not change."""
    try:
        return await wire.send(request)
    except NEVER_SENT as error:
        raise Unreachable(_words(error)) from error
    except httpx.TransportError as error:
        lost = Unreachable(_words(error))
        lost.__cause__ = error
        return lost
    except httpx.RequestError as error:
        raise InvalidReply(f"{request.url}: {_words(error)}") from error


def _wait(failure: RequestFailed, attempt: int, retries: Retries) -> float | None:
    """Seconds until the next attempt; None where there is none."""
    if attempt >= retries.attempts or not isinstance(failure, Unavailable | Unreachable):
        return None
    asked = failure.retry_after if isinstance(failure, Unavailable) else None
    if asked is None:
        # Capped before it is computed: an attempt number may be too large a power.
        asked = min(retries.base_seconds * 2.0 ** min(attempt - 1, 30), MAX_WAIT_SECONDS)
    elif asked > MAX_WAIT_SECONDS:
        return None
    # Jitter only ever adds: coming back before the server asked would be refused again.
    return asked * (1.0 + 0.25 * random.random())


def _read(call: Call[T], response: httpx.Response) -> T:
    try:
        return call.read(response)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidReply(
            f"{response.url}: {response.status_code}, but no reply of Paddlepool ({error!r})"
        ) from error


def _words(error: Exception) -> str:
    """httpx leaves some messages empty."""
    return str(error) or type(error).__name__
