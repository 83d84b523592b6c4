"""Await work that blocks, and the futures of several jobs at once."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class NoThread(OSError):
    """The system has no thread to give (EAGAIN)."""


async def in_thread(name: str, work: Callable[[], T]) -> T:
    """Run `work` in a new thread of that name and return what it returns or raises.

    The thread is a daemon: it does not keep the process from ending. Work goes on when the awaiting
    task is cancelled. Raises NoThread.
    """
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    outcome: list[tuple[Any, BaseException | None]] = []

    def wake() -> None:
        if not ended.done():  # nor cancelled
            ended.set_result(None)

    def run() -> None:
        try:
            outcome.append((work(), None))
        except BaseException as error:
            outcome.append((None, error))
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(wake)

    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError as error:
        raise NoThread(errno.EAGAIN, os.strerror(errno.EAGAIN)) from error
    await ended
    result, raised = outcome.pop()
    if raised is None:
        return result  # type: ignore[no-any-return]
    try:
        raise raised
    finally:
        del raised  # its traceback holds this frame: each would keep the other, and the arrays


async def in_some_thread(name: str, work: Callable[[], T]) -> T:
    """Like in_thread(), but on the event loop where there is no thread: what must not be left out.

    It holds up every request for a moment; left out, it would lose an instance or an answer.
    """
    try:
        return await in_thread(name, work)
    except NoThread:
        return work()


async def results_of(futures: list[asyncio.Future[T]]) -> list[T]:
    """Await all futures, or the first failure among them, and cancel what is not done then.

    Empties the list: an error keeps the frames that it was raised through, and a future keeps its
    error. A frame that names the future would keep the request's tensors until the garbage
    collector runs.
    """
    try:
        if len(futures) == 1:
            return [await futures[0]]
        return list(await asyncio.gather(*futures))
    finally:
        while futures:
            futures.pop().cancel()
