"""Requests that arrive at a steady rate, whether those before them are answered or not.

One thread sends and receives for all connections, and can do so in a process of its own. What a
client of many threads costs its machine, and another client that shares its interpreter, would
otherwise be measured as the server's.
"""

from __future__ import annotations

import contextlib
import random
import re
import selectors
import socket
import time
from collections import deque
from dataclasses import dataclass
from itertools import accumulate

from harness import HOST

CONNECTIONS = 160
"""More than requests can be under way: those queued, and those that are being refused."""

IDLE_SECONDS = 2.0
"""The server closes what is idle for longer."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a request ended, and after how long."""

    status: int
    seconds: float


class Exchange:
    """A keep-alive connection with at most one request under way. Nothing here waits."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((HOST, port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)
        self.since = 0.0

    def fileno(self) -> int:
        return self._socket.fileno()

    def begin(self, request: bytes) -> None:
        self._left = memoryview(request)
        self._received = bytearray()
        self.since = time.perf_counter()
        self.write()

    @property
    def sent(self) -> bool:
        return not self._left

    def write(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._left = self._left[self._socket.send(self._left) :]

    def read(self) -> int | None:
        """The status once the reply is complete. Raises ConnectionError where it never will be."""
        chunk = self._socket.recv(1 << 18)
        if not chunk:
            raise ConnectionError("the server closed the connection within a reply")
        self._received += chunk
        end = self._received.find(b"\r\n\r\n") + 4
        if end < 4:
            return None
        head = bytes(self._received[:end]).lower()
        length = re.search(rb"\ncontent-length: *(\d+)", head)
        if len(self._received) < end + int(length[1] if length else 0):
            return None
        self._last = b"\nconnection: close" in head
        return int(head.split(maxsplit=2)[1])

    def reusable(self) -> bool:
        """A refusal may come before the whole request is sent."""
        return self.sent and not self._last

    def close(self) -> None:
        self._socket.close()


def arrivals(
    port: int, request: bytes, *, rate: float, seconds: float, draw: random.Random | None = None
) -> list[Ended]:
    """`rate` requests a second, each sent by the first free connection; waits for every reply.

    They come at equal distances, or as those of many users do, where `draw` is given.
    """
    ended: list[Ended] = []
    free: deque[Exchange] = deque()
    under_way: set[Exchange] = set()
    count, total = 0, int(rate * seconds)
    gaps = (draw.expovariate(rate) if draw else 1 / rate for _ in range(total))
    moments = list(accumulate(gaps, initial=0.0))

    def finish(exchange: Exchange, status: int) -> None:
        now = time.perf_counter()
        ended.append(Ended(status, now - exchange.since))
        selector.unregister(exchange)
        under_way.discard(exchange)
        if exchange.reusable():
            exchange.since = now
            free.append(exchange)
        else:
            exchange.close()

    with selectors.DefaultSelector() as selector:
        began = time.perf_counter()
        while count < total or under_way:
            due = began + moments[count] - time.perf_counter() if count < total else None
            if due is not None and due <= 0 and len(under_way) < CONNECTIONS:
                while free and time.perf_counter() - free[0].since > IDLE_SECONDS:
                    free.popleft().close()
                exchange = free.pop() if free else Exchange(port)
                exchange.begin(request)
                under_way.add(exchange)
                writing = 0 if exchange.sent else selectors.EVENT_WRITE
                selector.register(exchange, selectors.EVENT_READ | writing)
                count += 1
                continue
            full = len(under_way) == CONNECTIONS
            for key, events in selector.select(None if due is None or full else due):
                exchange = key.fileobj  # type: ignore[assignment]  # those registered above
                if events & selectors.EVENT_WRITE:
                    exchange.write()
                    if exchange.sent:
                        selector.modify(exchange, selectors.EVENT_READ)
                if events & selectors.EVENT_READ and (status := exchange.read()) is not None:
                    finish(exchange, status)
    for exchange in free:
        exchange.close()
    return ended
