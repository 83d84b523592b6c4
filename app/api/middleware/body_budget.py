"""The memory that all request bodies together may hold, and which of them loses its place."""

from __future__ import annotations

import asyncio
import time

from app.contracts.errors import FileTooLarge, Overloaded
from app.contracts.ports import Clock

RETRY_SECONDS = 1.0


class Arrival:
    """One request's body. Its speed is what came of it in this second and the one before, both
    counted from its first byte."""

    __slots__ = ("_before", "_began", "_second", "_this", "lost", "received", "task", "whole")

    def __init__(self, now: float) -> None:
        self.task = asyncio.current_task()
        self.received = 0
        self.whole = False
        self.lost: Overloaded | None = None
        self._began = now
        self._second = self._this = self._before = 0

    def add(self, size: int, now: float) -> None:
        self._move_to(now)
        self._this += size

    def speed(self, now: float) -> int:
        """Bytes in one to two seconds."""
        self._move_to(now)
        return self._this + self._before

    def _move_to(self, now: float) -> None:
        passed = int(now - self._began) - self._second
        if passed:
            self._before, self._this = (self._this if passed == 1 else 0), 0
            self._second += passed


class BodyBudget:
    """For one event loop. Bytes count from their arrival until their request is answered.

    Where there is no room for more bytes of a body, the slowest of those that are still arriving
    loses its place: its request is refused and its bytes are freed. Of equally slow ones it is the
    body itself, or else the largest. What came whole loses its place to nobody: work has begun on
    it.
    """

    def __init__(self, limit: int, *, clock: Clock = time.monotonic) -> None:
        """`limit` in bytes."""
        self.limit = limit
        self._clock = clock
        self._used = 0
        self._whole = 0
        self._arriving: set[Arrival] = set()

    @property
    def used(self) -> int:
        return self._used

    def begin(self, length: int) -> Arrival:
        """A body of `length` bytes, or of 0 where that is not known, begins to arrive.

        Raises Overloaded where it could not fit although all that still arrive made room, and
        FileTooLarge where it would not fit alone.
        """
        if length > self.limit:
            raise too_large(self.limit, length)
        if self._whole + length > self.limit:
            raise self._full()
        arrival = Arrival(self._clock())
        self._arriving.add(arrival)
        return arrival

    def take(self, arrival: Arrival, size: int) -> None:
        """More bytes of the body have come; raises Overloaded when they are those that must go."""
        now = self._clock()
        arrival.add(size, now)
        while self._used + size > self.limit:
            slowest = min(
                self._arriving,
                key=lambda other: (other.speed(now), other is not arrival, -other.received),
            )
            if slowest is arrival:
                raise self._full()
            self._drop(slowest)
        self._used += size
        arrival.received += size

    def finish(self, arrival: Arrival) -> None:
        """The body is whole."""
        if arrival in self._arriving:
            self._arriving.remove(arrival)
            arrival.whole = True
            self._whole += arrival.received

    def end(self, arrival: Arrival) -> None:
        """Its request is over, one way or the other."""
        self._used -= arrival.received
        if arrival.whole:
            self._whole -= arrival.received
        self._arriving.discard(arrival)
        arrival.received = 0

    def _drop(self, arrival: Arrival) -> None:
        self.end(arrival)
        arrival.lost = self._full()
        if arrival.task is not None:
            arrival.task.cancel()

    def _full(self) -> Overloaded:
        return Overloaded(
            f"request bodies hold all the memory they may, {self.limit} bytes, and no other "
            "arrives more slowly than this one",
            retry_after=RETRY_SECONDS,
            limit=self.limit,
        )


def too_large(cap: int, received: int | str) -> FileTooLarge:
    return FileTooLarge(
        f"The body has {received} bytes, the limit is {cap}.", limit=cap, received=received
    )
