"""Clients of a benchmark.

They send one request after another, with or without a pause, or requests arrive at a constant rate,
whether or not earlier ones are answered. One thread sends and receives on all connections: more
threads would take processor time from the server.
"""

import asyncio
import contextlib
import random
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import TypeVar, cast

import uvloop
from harness import (
    CLOSED,
    HOST,
    IDLE_SECONDS,
    REQUEST_ERRORS,
    Connection,
    Reply,
    Server,
    body_of,
    complete,
    meanwhile,
    send,
)

FACTOR = 3.0
"""Multiple of the capacity, for an overload."""


@dataclass(frozen=True, slots=True)
class HttpWay:
    """One request over keep-alive connections, for one or more pictures or texts."""

    server: Server
    request: bytes
    units: int = 1
    status: int = 200

    def one(self) -> Reply:
        """Use a new connection. Raises RuntimeError for another status."""
        return checked(send(self.server.port, self.request), self.status)

    @contextlib.contextmanager
    def client(self) -> Iterator[Callable[[], Reply]]:
        """Return a client. Its calls raise RuntimeError for another status."""
        with contextlib.closing(Connection(self.server.port)) as connection:
            yield lambda: checked(connection.send(self.request), self.status)

    def rate(self, *, clients: int, seconds: float) -> float:
        """Return units per second, from one thread: more would take the server's processor time."""
        return uvloop.run(self._rate(clients, seconds))

    async def _rate(self, clients: int, seconds: float) -> float:
        port, make = self.server.port, partial(Steady, self.request, self.status)
        async with contextlib.AsyncExitStack() as stack:
            steady = [
                await stack.enter_async_context(connected(port, make)) for _ in range(clients)
            ]
            began = time.perf_counter()
            for client in steady:
                client.begin(until=began + seconds)
            done = await asyncio.gather(*(client.ended for client in steady))
            return self.units * sum(done) / (time.perf_counter() - began)


def checked(reply: Reply, status: int = 200) -> Reply:
    """Return the reply. Raises RuntimeError for another status."""
    if reply.status != status:
        raise RuntimeError(f"status {reply.status}: {reply.body[:300]!r}")
    return reply


def one_client(way: HttpWay, *, seconds: float) -> list[float]:
    """Seconds of each request of one client after its first; at least one request."""
    latencies: list[float] = []
    with way.client() as send:
        send()
        end = time.perf_counter() + seconds
        while not latencies or time.perf_counter() < end:
            latencies.append(send().seconds)
    return latencies


@contextlib.contextmanager
def users(way: HttpWay, *, number: int, pause: float, seed: int) -> Iterator[list[float]]:
    """Run users who pause `pause` seconds on average between requests, within the block.

    The list of latencies is complete after the block, which also raises the errors of users.
    """
    completed: list[float] = []

    def work(user: int, ending: threading.Event) -> None:
        draw = random.Random(1000 * seed + user)
        with way.client() as send:
            while not ending.is_set():
                completed.append(send().seconds)
                ending.wait(draw.expovariate(1 / pause))

    with meanwhile(*(partial(work, user) for user in range(number))):
        yield completed


class Exchange(asyncio.Protocol):
    """A keep-alive connection of an event loop, with at most one request in flight."""

    _reply: asyncio.Future[Reply] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    async def send(self, request: bytes) -> Reply:
        """Send a request and wait for its reply. Raises one of REQUEST_ERRORS.

        Closes the connection after an error, a reply that ends it, or a rejection that arrives
        before the whole request is sent.
        """
        if self.transport.is_closing():
            raise ConnectionError(CLOSED)
        self._received = bytearray()
        self._reply = asyncio.get_running_loop().create_future()
        self._began = time.perf_counter()
        self.transport.write(request)
        reply = None
        try:
            reply = await self._reply
        finally:
            if reply is None or reply.closes or self.transport.get_write_buffer_size():
                self.transport.abort()
        return reply

    def data_received(self, data: bytes) -> None:
        if self._reply is None or self._reply.done():
            return
        self._received += data
        if (reply := complete(self._received, self._began)) is not None:
            self.used = time.perf_counter()
            self._reply.set_result(reply)

    def connection_lost(self, error: Exception | None) -> None:
        if self._reply and not self._reply.done():
            self._reply.set_exception(error or ConnectionError(CLOSED))


class Steady(asyncio.Protocol):
    """A client that sends its request again as soon as it has the reply, at little cost.

    `ended` is the number of replies, or raises RuntimeError for another status.
    """

    def __init__(self, request: bytes, status: int) -> None:
        self._request, self._expected = request, b"HTTP/1.1 %d " % status
        self._received, self._replies = bytearray(), 0
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def begin(self, *, until: float) -> None:
        self._until = until
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if body_of(self._received) is None or self.ended.done():
            return
        if not self._received.startswith(self._expected):
            self.ended.set_exception(RuntimeError(f"reply: {bytes(self._received[:300])!r}"))
            return
        self._received.clear()
        self._replies += 1
        if time.perf_counter() < self._until:
            self.transport.write(self._request)
        else:
            self.ended.set_result(self._replies)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_exception(error or ConnectionError(CLOSED))


P = TypeVar("P", Exchange, Steady)


@contextlib.asynccontextmanager
async def connected(port: int, protocol: Callable[[], P]) -> AsyncIterator[P]:
    """Open a connection; close it after the block, whatever is still to be sent."""
    _, client = await asyncio.get_running_loop().create_connection(protocol, HOST, port)
    try:
        yield client
    finally:
        client.transport.abort()


def arrivals(
    port: int,
    request: bytes,
    *,
    rate: float,
    seconds: float,
    draw: random.Random | None = None,
    patience: float = 60.0,
) -> list[Reply]:
    """Send `rate` requests per second on free connections, whether or not earlier ones have ended.

    They have equal distances, or with `draw` random ones as from many users. The seconds of a reply
    begin when its request is due. Without a reply within `patience` seconds, the status is 0.
    """
    gaps = (draw.expovariate(rate) if draw else 1 / rate for _ in range(int(rate * seconds) - 1))
    return uvloop.run(_arrivals(port, request, accumulate(gaps, initial=0.0), patience))


async def _arrivals(
    port: int, request: bytes, after: Iterable[float], patience: float
) -> list[Reply]:
    free: deque[Exchange] = deque()
    began = time.perf_counter()

    async def one(due: float) -> Reply:
        # More than once if need be: uvloop's timers may end a moment early.
        while (early := began + due - time.perf_counter()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(early)
        reply = Reply(0, {}, b"", 0.0)
        with contextlib.suppress(*REQUEST_ERRORS):
            async with asyncio.timeout(patience):
                while free and time.perf_counter() - free[0].used > IDLE_SECONDS:
                    free.popleft().transport.abort()
                opening = connected(port, Exchange)
                exchange = free.pop() if free else await stack.enter_async_context(opening)
                reply = await exchange.send(request)
                if not exchange.transport.is_closing():
                    free.append(exchange)
        return replace(reply, seconds=time.perf_counter() - began - due)

    async with contextlib.AsyncExitStack() as stack:
        return await asyncio.gather(*map(one, after))


def overloaded(way: HttpWay, *, clients: int, seconds: float) -> tuple[float, list[float]]:
    """Units answered per second at three times the capacity, and the seconds of each rejection.

    Raises RuntimeError for a status other than 200 and 503.
    """
    rate = FACTOR * way.rate(clients=clients, seconds=seconds) / way.units
    began = time.perf_counter()
    ended = arrivals(way.server.port, way.request, rate=rate, seconds=seconds)
    elapsed = time.perf_counter() - began
    completed = [checked(reply) for reply in ended if reply.status != 503]
    refusals = [reply.seconds for reply in ended if reply.status == 503]
    return way.units * len(completed) / elapsed, refusals
