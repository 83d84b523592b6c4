"""Clients of a benchmark: one at a time, several without pause, and users who pause."""

from __future__ import annotations

import contextlib
import random
import selectors
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Protocol, cast

from harness import Connection, Reply, meanwhile

MOST_PAUSE_SECONDS = 4.0
"""Well below the keep-alive timeout of the server."""

Client = Callable[[], float]
"""Send the request once; return the seconds until the reply was read."""


class Way(Protocol):
    """One way to do the work of a benchmark; `units` are the pictures or texts of one request."""

    @property
    def units(self) -> int: ...

    def client(self) -> AbstractContextManager[Client]: ...

    def rate(self, *, clients: int, seconds: float) -> float:
        """Units per second of clients without pause."""


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
