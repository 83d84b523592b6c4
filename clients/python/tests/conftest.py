"""Both clients against a transport that answers as the test says, with the same methods."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from paddlepool_client import AsyncClient, Client

Outcome = httpx.Response | Exception


class StubbedClient:
    """A client, blocking or awaited, whose methods are called alike.

    `requests` and `slept` (seconds) are what it has done; `outcomes` are used up in order.
    """

    def __init__(self, *outcomes: Outcome, awaited: bool, url: str, **settings: Any) -> None:
        self.requests: list[httpx.Request] = []
        self.slept: list[float] = []
        self._outcomes = list(outcomes)
        self._awaited = awaited
        self._settings = {"url": url, "transport": httpx.MockTransport(self._handle), **settings}

    def __getattr__(self, method: str) -> Callable[..., Any]:
        return lambda *args, **options: (
            asyncio.run(self._await(method, *args, **options))
            if self._awaited
            else self._block(method, *args, **options)
        )

    def _handle(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        outcome = self._outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _block(self, method: str, *args: Any, **options: Any) -> Any:
        with Client(sleep=self.slept.append, **self._settings) as client:
            return getattr(client, method)(*args, **options)

    async def _await(self, method: str, *args: Any, **options: Any) -> Any:
        async def sleep(seconds: float) -> None:
            self.slept.append(seconds)

        async with AsyncClient(sleep=sleep, **self._settings) as client:
            return await getattr(client, method)(*args, **options)


@pytest.fixture(params=[False, True], ids=["blocking", "awaited"])
def asking(request: pytest.FixtureRequest) -> Callable[..., StubbedClient]:
    """`asking(outcome, …, **settings)`: a client of a server with these outcomes."""

    def make(*outcomes: Outcome, url: str = "http://server", **settings: Any) -> StubbedClient:
        return StubbedClient(*outcomes, awaited=request.param, url=url, **settings)

    return make


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Make Ctrl-C raise KeyboardInterrupt even where the tests run in a shell's background.

    Without garbage collection: raised in a callback of it, as Hypothesis has one, it is lost.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.disable()
    yield
    gc.enable()
    signal.signal(signal.SIGINT, before)
