"""Await futures that threads settle: the one bridge between asyncio and the executors."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
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


async def submitted_in(
    executor: Executor, submit: Callable[[], list[Future[T]]]
) -> list[Future[T]]:
    """What submit() returns or raises, in a thread, with the caller's context variables.

    When the awaiting task is cancelled meanwhile, what was submitted is cancelled, too.
    """
    context = contextvars.copy_context()
    submitting = asyncio.get_running_loop().run_in_executor(executor, context.run, submit)
    try:
        return await asyncio.shield(submitting)
    except asyncio.CancelledError:
        submitting.add_done_callback(_cancel_submitted)
        raise
    finally:
        del submitting


def _cancel_submitted(submitting: asyncio.Future[list[Future[T]]]) -> None:
    if not submitting.cancelled() and submitting.exception() is None:
        for future in submitting.result():
            future.cancel()
