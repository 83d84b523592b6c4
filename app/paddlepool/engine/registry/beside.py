"""Versions that are open beside the one that serves: a new one on trial, or the one before."""

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from itertools import chain

from paddlepool.contracts.caller import REQUEST_ID
from paddlepool.contracts.status import VersionSet
from paddlepool.engine.registry.composed import ComposedModel
from paddlepool.engine.registry.composer import AnyModel

SHARES = 1 << 16


@dataclass(frozen=True, slots=True)
class _Open:
    model: AnyModel
    fraction: float
    timer: asyncio.TimerHandle | None


class Beside:
    """Keeps at most one open version of each model beside the one that serves.

    `retire` drains and closes a version, and the parts that serve for it alone. Belongs to the
    event loop.
    """

    def __init__(self, retire: Callable[[AnyModel], Awaitable[None]]) -> None:
        self._retire = retire
        self._open: dict[str, _Open] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def answers(self, name: str) -> AnyModel | None:
        """Return the open version of a model if it shall answer the current request, else None.

        It answers its fraction of the requests while it is ready. A hash of the request's id
        decides, so a request that is sent again with the same id gets the same version.
        """
        beside = self._open.get(name)
        if beside is None or not beside.fraction or not beside.model.ready():
            return None
        share = zlib.crc32(REQUEST_ID.get().encode("utf-8", "replace")) % SHARES
        return beside.model if share < beside.fraction * SHARES else None

    def get(self, name: str) -> AnyModel | None:
        """Return the open version of a model, or None."""
        beside = self._open.get(name)
        return None if beside is None else beside.model

    async def put(self, model: AnyModel, *, fraction: float = 0.0, seconds: float = 0.0) -> None:
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

    def take(self, name: str, versions: VersionSet) -> AnyModel | None:
        """Remove and return this version, which then belongs to the caller; None if not open."""
        beside = self._open.get(name)
        if beside is None or beside.model.version_set != versions:
            return None
        del self._open[name]
        if beside.timer is not None:
            beside.timer.cancel()
        return beside.model

    async def close(self, name: str) -> None:
        """Remove the open version of a model, if there is one; drain and close it."""
        beside = self._open.get(name)
        if beside is not None and (model := self.take(name, beside.model.version_set)) is not None:
            await self._retire(model)

    async def close_trial(self, name: str) -> None:
        """Close the version beside if it is a new one that answers requests."""
        if (beside := self._open.get(name)) is not None and beside.fraction:
            await self.close(name)

    async def close_users(self, parts: Mapping[str, AnyModel | None]) -> None:
        """Close the composed models beside that use a version which does not serve any more.

        `parts` has the version that serves now, or None, of each model that changed. A composed
        model keeps the versions that are its `own_parts`.
        """
        for beside in tuple(self._open.values()):
            model = beside.model
            if isinstance(model, ComposedModel) and any(
                part.name in parts and part not in (*model.own_parts, parts[part.name])
                for part in model.parts.values()
            ):
                await self.close(model.name)

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
        models = [beside.model for beside in opened.values()]
        parts = [m.own_parts for m in models if isinstance(m, ComposedModel)]
        await asyncio.gather(*(model.close() for model in (*models, *chain.from_iterable(parts))))
