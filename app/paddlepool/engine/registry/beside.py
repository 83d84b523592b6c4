"""Versions that are open beside the one that serves: a new one on trial, or the one before."""

import asyncio
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from paddlepool.contracts.caller import REQUEST_ID
from paddlepool.engine.registry.model import ServedModel

SHARES = 1 << 16


@dataclass(frozen=True, slots=True)
class _Open:
    model: ServedModel
    fraction: float
    timer: asyncio.TimerHandle | None


class Beside:
    """Keeps at most one open version of each model beside the one that serves.

    `retire` drains and closes a version. Belongs to the event loop.
    """

    def __init__(self, retire: Callable[[ServedModel], Awaitable[None]]) -> None:
        self._retire = retire
        self._open: dict[str, _Open] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def answers(self, name: str) -> ServedModel | None:
        """Return the open version of a model if it shall answer the current request, else None.

        It answers its fraction of the requests while it is ready. A hash of the request's id
        decides, so a request that is sent again with the same id gets the same version.
        """
        beside = self._open.get(name)
        if beside is None or not beside.fraction or not beside.model.ready():
            return None
        share = zlib.crc32(REQUEST_ID.get().encode("utf-8", "replace")) % SHARES
        return beside.model if share < beside.fraction * SHARES else None

    def get(self, name: str) -> ServedModel | None:
        """Return the open version of a model, or None."""
        beside = self._open.get(name)
        return None if beside is None else beside.model

    async def put(self, model: ServedModel, *, fraction: float = 0.0, seconds: float = 0.0) -> None:
        """Keep a version open, and close the one of its model that was open before.

        `model` answers this fraction of the requests. Unless `seconds` is 0, it is closed after
        that time.
        """
        await self.close(model.name)
        timer = None
        if seconds:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(seconds, self._expire, model.name)
        self._open[model.name] = _Open(model, fraction, timer)

    def take(self, name: str, version: int) -> ServedModel | None:
        """Remove and return this version, which the caller must close; None if it is not open."""
        beside = self._open.get(name)
        if beside is None or beside.model.version != version:
            return None
        del self._open[name]
        if beside.timer is not None:
            beside.timer.cancel()
        return beside.model

    async def close(self, name: str) -> None:
        """Remove the open version of a model, if there is one; drain and close it."""
        beside = self._open.get(name)
        if beside is not None and (model := self.take(name, beside.model.version)) is not None:
            await self._retire(model)

    def _expire(self, name: str) -> None:
        task = asyncio.create_task(self.close(name), name="closing a version")
        self._closing.add(task)  # the event loop keeps only weak references
        task.add_done_callback(self._closing.discard)

    async def close_all(self) -> None:
        """Close every version without draining it."""
        opened, self._open = self._open, {}
        for beside in opened.values():
            if beside.timer is not None:
                beside.timer.cancel()
        await asyncio.gather(*(beside.model.close() for beside in opened.values()))
