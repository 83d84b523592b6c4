"""Requests that arrive at a constant rate, whether or not earlier ones are answered.

One thread sends and receives on all connections, and can run in its own process. Otherwise the cost
of many client threads, or of another client in the same interpreter, would count as the server's.
"""

from __future__ import annotations

import contextlib
import random
import selectors
import time
from collections import deque
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import accumulate

from closed_loop import Client, HttpWay, checked
from harness import Connection, Reply

FACTOR = 3.0
"""Multiple of the capacity, for an overload."""
CONNECTIONS = 160
"""More than the queued requests and those being rejected together."""

IDLE_SECONDS = 2.0
"""Below the server's keep-alive timeout."""


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

    @property
    def units(self) -> int:
        return self.calm.units

    def client(self) -> AbstractContextManager[Client]:
        return self.calm.client()

    def rate(self, *, clients: int, seconds: float) -> float:
        """Units answered per second. Raises RuntimeError for a status other than 200 and 503."""
        calm = self.calm.rate(clients=clients, seconds=seconds)
        began = time.perf_counter()
        ended = arrivals(
            self.calm.port, self.calm.request, rate=FACTOR * calm / self.units, seconds=seconds
        )
        elapsed = time.perf_counter() - began
        self.refusals.extend(each.seconds for each in ended if each.status == 503)
        answered = [checked(each) for each in ended if each.status != 503]
        return self.units * len(answered) / elapsed
