"""Clients of a benchmark.

They send one request after another, with or without a pause, or requests arrive at a constant rate,
whether or not earlier ones are answered. One thread sends and receives on all connections: more
threads would take processor time from the server.
"""

from __future__ import annotations

import contextlib
import random
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Protocol, cast

from harness import Connection, Reply, meanwhile

MOST_PAUSE_SECONDS = 4.0
"""Well below the keep-alive timeout of the server."""
FACTOR = 3.0
"""Multiple of the capacity, for an overload."""
CONNECTIONS = 160
"""More than the queued requests and those being rejected together."""

IDLE_SECONDS = 2.0
"""Below the server's keep-alive timeout."""

Client = Callable[[], float]
"""Send the request once; return the seconds until the reply was read."""


class Way(Protocol):
    """One way to do the work of a benchmark."""

    def client(self) -> AbstractContextManager[Client]: ...

    def rate(self, *, clients: int, seconds: float) -> float:
        """Units, which are pictures or texts, per second of clients without pause."""


@dataclass(frozen=True, slots=True)
class HttpWay:
    """One request over keep-alive connections to a local port."""

    port: int
    request: bytes
    units: int = 1
    status: int = 200
    pid: int = 0
    """The process id of the server, to measure its processor time."""

    @contextlib.contextmanager
    def client(self) -> Iterator[Client]:
        """Return a client. Its calls raise RuntimeError for another status."""
        with contextlib.closing(Connection(self.port)) as connection:
            yield lambda: checked(connection.send(self.request), self.status).seconds

    def rate(self, *, clients: int, seconds: float) -> float:
        """One thread for all clients: more threads would take processor time from the server."""
        done = 0
        with contextlib.ExitStack() as stack:
            waiting = stack.enter_context(selectors.DefaultSelector())
            for _ in range(clients):
                connection = stack.enter_context(contextlib.closing(Connection(self.port)))
                waiting.register(connection, selectors.EVENT_READ)
                connection.write(self.request)
            began = time.perf_counter()
            while waiting.get_map():
                for ready, _ in waiting.select():
                    connection = cast(Connection, ready.fileobj)
                    if (reply := connection.received()) is None:
                        continue
                    checked(reply, self.status)
                    done += self.units
                    if time.perf_counter() - began < seconds:
                        connection.write(self.request)
                    else:
                        waiting.unregister(connection)
            return done / (time.perf_counter() - began)


def checked(reply: Reply, status: int = 200) -> Reply:
    """Return the reply. Raises RuntimeError for another status."""
    if reply.status != status:
        raise RuntimeError(f"status {reply.status}: {reply.body[:300]!r}")
    return reply


def one_client(way: Way, *, seconds: float) -> list[float]:
    """Seconds of each request of one client after its first; at least one request."""
    taken: list[float] = []
    with way.client() as ask:
        ask()
        end = time.perf_counter() + seconds
        while not taken or time.perf_counter() < end:
            taken.append(ask())
    return taken


@contextlib.contextmanager
def users(way: Way, *, number: int, pause: float, seed: int) -> Iterator[list[float]]:
    """Run users who pause `pause` seconds on average between requests, within the block.

    The list of latencies is complete after the block, which also raises the errors of users.
    """
    answered: list[float] = []

    def work(user: int, ending: threading.Event) -> None:
        draw = random.Random(1000 * seed + user)
        with way.client() as ask:
            while not ending.is_set():
                answered.append(ask())
                ending.wait(min(draw.expovariate(1 / pause), MOST_PAUSE_SECONDS))

    with meanwhile(*(partial(work, user) for user in range(number))):
        yield answered


class Exchange(Connection):
    """A keep-alive connection with at most one request in flight. No method blocks."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self._socket.setblocking(False)

    def write(self, request: bytes) -> None:
        self._begin()
        self._left = memoryview(request)
        self.go_on()

    @property
    def sent(self) -> bool:
        return not self._left

    def go_on(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._left = self._left[self._socket.send(self._left) :]


def arrivals(
    port: int, request: bytes, *, rate: float, seconds: float, draw: random.Random | None = None
) -> list[Reply]:
    """Send `rate` requests per second on free connections; wait for every reply.

    They have equal distances, or with `draw` random ones as from many users.
    """
    ended: list[Reply] = []
    free: deque[Exchange] = deque()
    under_way: set[Exchange] = set()
    count, total = 0, int(rate * seconds)
    gaps = (draw.expovariate(rate) if draw else 1 / rate for _ in range(total))
    moments = list(accumulate(gaps, initial=0.0))

    def finish(exchange: Exchange, reply: Reply) -> None:
        ended.append(reply)
        selector.unregister(exchange)
        under_way.discard(exchange)
        # A rejection may arrive before the whole request is sent.
        if exchange.sent and reply.headers.get("connection") != "close":
            exchange.began = time.perf_counter()
            free.append(exchange)
        else:
            exchange.close()

    with selectors.DefaultSelector() as selector:
        began = time.perf_counter()
        while count < total or under_way:
            due = began + moments[count] - time.perf_counter() if count < total else None
            if due is not None and due <= 0 and len(under_way) < CONNECTIONS:
                while free and time.perf_counter() - free[0].began > IDLE_SECONDS:
                    free.popleft().close()
                exchange = free.pop() if free else Exchange(port)
                exchange.write(request)
                under_way.add(exchange)
                writing = 0 if exchange.sent else selectors.EVENT_WRITE
                selector.register(exchange, selectors.EVENT_READ | writing)
                count += 1
                continue
            full = len(under_way) == CONNECTIONS
            for key, events in selector.select(None if due is None or full else due):
                exchange = key.fileobj  # type: ignore[assignment]  # those registered above
                if events & selectors.EVENT_WRITE:
                    exchange.go_on()
                    if exchange.sent:
                        selector.modify(exchange, selectors.EVENT_READ)
                if events & selectors.EVENT_READ and (reply := exchange.received()) is not None:
                    finish(exchange, reply)
    for exchange in free:
        exchange.close()
    return ended


@dataclass(frozen=True, slots=True)
class OverloadedWay:
    """Requests arrive at three times the capacity, whether or not earlier ones are answered."""

    calm: HttpWay
    refusals: list[float] = field(default_factory=list)
    """Seconds of each rejection."""

    def client(self) -> AbstractContextManager[Client]:
        return self.calm.client()

    def rate(self, *, clients: int, seconds: float) -> float:
        """Units answered per second. Raises RuntimeError for a status other than 200 and 503."""
        way = self.calm
        calm = way.rate(clients=clients, seconds=seconds)
        began = time.perf_counter()
        ended = arrivals(way.port, way.request, rate=FACTOR * calm / way.units, seconds=seconds)
        elapsed = time.perf_counter() - began
        self.refusals.extend(each.seconds for each in ended if each.status == 503)
        answered = [checked(each) for each in ended if each.status != 503]
        return way.units * len(answered) / elapsed
