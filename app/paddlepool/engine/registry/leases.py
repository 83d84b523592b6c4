"""Counts the uses of a model version, so that it can be drained before it is closed."""

import asyncio


class Leased:
    """A model version that requests and composed models hold while they use it.

    `leases` counts these holders. Each acquire() needs one release(). Belongs to the event loop.
    """

    def __init__(self) -> None:
        self.leases = 0
        self._unleased = asyncio.Event()
        self._unleased.set()

    def acquire(self) -> None:
        self.leases += 1
        self._unleased.clear()

    def release(self) -> None:
        self.leases -= 1
        if self.leases == 0:
            self._unleased.set()

    async def drain(self, timeout: float) -> bool:
        """Wait until nothing holds this version; False if it is still held after `timeout` s."""
        try:
            async with asyncio.timeout(timeout):
                return await self._unleased.wait()
        except TimeoutError:
            return False
