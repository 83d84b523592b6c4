"""Await futures that threads settle: the one bridge between asyncio and the executors."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")

# An error keeps the frames it was raised through, and a future keeps its error. A frame that names
# the future would close the circle, and the request's pictures and tensors would stay until the
# garbage collector runs: these functions let go of their futures before they return or raise.


async def result_of(future: Future[T]) -> T:
    """Await one future. If this task is cancelled meanwhile, so is the future."""
    futures = [future]
    del future
    [result] = await results_of(futures)
    return result


async def results_of(futures: list[Future[T]]) -> list[T]:
    """Await all futures, or the first failure among them, and cancel what is not done then.

    Raises asyncio.CancelledError when a future was cancelled. Empties the list. Futures that are
    done already cost no turn of the event loop.
    """
    each: Future[T] | None = None
    try:
        if not all(each.done() for each in futures):
            await _settled(futures)
        for each in futures:
            if each.done():
                each.result()
        return [each.result() for each in futures]
    except concurrent.futures.CancelledError:
        raise asyncio.CancelledError from None
    finally:
        each = None
        while futures:
            futures.pop().cancel()


async def _settled(futures: Sequence[Future[T]]) -> None:
    """Return when all futures are done or one has failed.

    The event loop is woken once for all of them: a wake-up for each would take the interpreter
    from the thread that is about to start the next batch.
    """
    loop = asyncio.get_running_loop()
    settled = asyncio.Event()
    waiting = set(futures)

    def settle(future: Future[T]) -> None:
        waiting.discard(future)  # atomic: no two threads settle one future
        failed = future.cancelled() or future.exception() is not None
        if (failed or not waiting) and not loop.is_closed():
            loop.call_soon_threadsafe(settled.set)

    for each in futures:
        each.add_done_callback(settle)
    try:
        await settled.wait()
    finally:
        waiting.clear()
