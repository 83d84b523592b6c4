"""Places for messages that are under way: only so many whole ones fit into memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from app.contracts.errors import InvalidTensor, Overloaded

SLOW_SECONDS = 1.0
"""A message may take so long where others wait for its place."""

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
