"""Places for messages and streams under way: only so many whole messages fit into memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from app.contracts.errors import InvalidTensor, Overloaded

SLOW_SECONDS = 1.0
"""A message may take so long where others wait for its place."""

KEPT_RETRY_SECONDS = 5.0

NO_MESSAGE = "the call ended without a message"


class Arrivals:
    """For one event loop.

    gRPC assembles a message before it is seen, so how much of it has come nobody knows, and a call
    may begin and send nothing. So whoever waits for a place asks for that of the message that has
    been awaited the longest, which loses it unless it comes within `slow` seconds of its beginning.
    """

    def __init__(self, places: int, *, seconds: float, slow: float = SLOW_SECONDS) -> None:
        """`seconds` are what a message may take in any case."""
        self._places = asyncio.Semaphore(places)
        self._limit = places
        self._seconds = seconds
        self._slow = slow
        self._waiting = 0
        self._awaited: dict[asyncio.Timeout, float] = {}
        self._hurried: set[asyncio.Timeout] = set()

    async def next(self, messages: AsyncIterator[bytes]) -> bytes:
        """The call's message. Raises TimeoutError, Overloaded where it has no place or loses it,
        and InvalidTensor where the call ends without one."""
        has_place = lost = False
        try:
            async with asyncio.timeout(self._seconds) as patience:
                await self._take_place()
                has_place = True
                self._awaited[patience] = asyncio.get_running_loop().time()
                self._hurry()
                try:
                    return await anext(messages)
                finally:
                    lost = patience in self._hurried
                    self._hurried.discard(patience)
                    self._awaited.pop(patience, None)
                    self._places.release()
        except StopAsyncIteration:
            raise InvalidTensor(NO_MESSAGE) from None
        except TimeoutError:
            if has_place and not lost:
                raise
            raise Overloaded(
                f"{self._limit} messages are arriving, as many as may, and others came before this",
                retry_after=self._slow,
                limit=self._limit,
            ) from None

    async def _take_place(self) -> None:
        self._waiting += 1
        try:
            if self._places.locked():
                self._hurry()
            await self._places.acquire()
        finally:
            self._waiting -= 1

    def _hurry(self) -> None:
        """As many of the oldest as wait for a place."""
        while self._awaited and len(self._hurried) < self._waiting:
            patience = next(iter(self._awaited))
            began = self._awaited.pop(patience)
            if not patience.expired():  # its own time is not up already
                self._hurried.add(patience)
                patience.reschedule(began + self._slow)


class Stream:
    """A place that is held. `idle_since` is None while its last message is answered."""

    def __init__(self) -> None:
        self.idle_since: float | None = asyncio.get_running_loop().time()
        self._patience: asyncio.Timeout | None = None
        self._lost = False

    async def next(self, messages: AsyncIterator[bytes]) -> bytes:
        """Raises StopAsyncIteration at the end, and Overloaded where the place is lost."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout_at(loop.time() if self._lost else None) as self._patience:
                self.idle_since = loop.time()
                message = await anext(messages)
        except TimeoutError:
            raise Overloaded(
                "this stream sent nothing, and another one needed its place",
                retry_after=SLOW_SECONDS,
            ) from None
        self.idle_since = None
        return message

    def lose(self) -> None:
        self._lost = True
        if self._patience is not None:
            self._patience.reschedule(asyncio.get_running_loop().time())


class KeptOpen:
    """For one event loop. Calls that ask for no key and may stay as long as they like."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open = 0

    @contextmanager
    def place(self) -> Iterator[None]:
        """Raises Overloaded where there are too many."""
        if self._open >= self._most:
            raise Overloaded(
                f"{self._open} calls are kept open, as many as may",
                retry_after=KEPT_RETRY_SECONDS,
                limit=self._most,
                received=self._open + 1,
            )
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1


class Streams:
    """For one event loop. A client may open a stream and send nothing, and need not say who it is
    where there are no keys: the stream that has been idle the longest gives its place to a new one.
    """

    def __init__(self, places: int, *, idle: float = SLOW_SECONDS) -> None:
        """A stream that is idle for less than `idle` seconds keeps its place."""
        self._limit = places
        self._idle = idle
        self._open: set[Stream] = set()

    def make_room(self) -> None:
        """Raises Overloaded where every stream is at work."""
        if len(self._open) < self._limit:
            return
        since = {each: each.idle_since for each in self._open if each.idle_since is not None}
        oldest = min(since, key=since.__getitem__, default=None)
        now = asyncio.get_running_loop().time()
        if oldest is None or now - since[oldest] < self._idle:
            raise Overloaded(
                f"{len(self._open)} streams are open, as many as may",
                retry_after=SLOW_SECONDS,
                limit=self._limit,
                received=len(self._open) + 1,
            )
        self._open.discard(oldest)
        oldest.lose()

    @contextmanager
    def place(self) -> Iterator[Stream]:
        """Raises Overloaded where every stream is at work."""
        self.make_room()
        stream = Stream()
        self._open.add(stream)
        try:
            yield stream
        finally:
            self._open.discard(stream)
