"""Await blocking work, or the futures of several jobs at once."""

import asyncio
import concurrent.futures
import errno
import logging
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

log = logging.getLogger(__name__)


class NoThread(OSError):
    """The system cannot start another thread (EAGAIN)."""


async def in_thread(name: str, work: Callable[[], T]) -> T:
    """Run `work` in a new thread named `name`; return its result or raise its error.

    The thread is a daemon: it does not keep the process alive. The work continues if the awaiting
    task is cancelled. Raises NoThread if the thread cannot be started; `work` is then not called.
    """
    done: concurrent.futures.Future[T] = concurrent.futures.Future()
    done.set_running_or_notify_cancel()  # from now on, it cannot be cancelled
    try:
        threading.Thread(target=_set_outcome, args=(done, work), name=name, daemon=True).start()
    except RuntimeError as error:
        raise NoThread(errno.EAGAIN, os.strerror(errno.EAGAIN)) from error
    try:
        return await asyncio.wrap_future(done)
    finally:
        del (
            done
        )  # breaks a reference cycle with an error's traceback, which would keep arrays alive


def _set_outcome(done: concurrent.futures.Future[T], work: Callable[[], T]) -> None:
    try:
        done.set_result(work())
    except BaseException as error:
        done.set_exception(error)
    finally:
        del done, work


async def in_thread_or_inline(name: str, work: Callable[[], T]) -> T:
    """Like in_thread(), but run `work` on the event loop if no thread can be started.

    Use it for work that must be done, because an instance or a result would be lost otherwise. On
    the event loop, the work delays every request for a moment.
    """
    try:
        return await in_thread(name, work)
    except NoThread:
        return work()


def log_failure(task: asyncio.Task[Any]) -> None:
    """Log the error of a task that nobody awaits: a callback for its add_done_callback()."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("the background task %r has failed", task.get_name(), exc_info=error)


async def gather_or_cancel(futures: list[asyncio.Future[T]]) -> list[T]:
    """Return all results in order, or raise the first failure and cancel the other futures.

    If the awaiting task is cancelled, all futures are cancelled. Empties the list, to prevent a
    reference cycle: a future keeps its error, the error keeps the frames it was raised through, and
    a frame may keep the future. The cycle would keep the request's tensors until the garbage
    collector runs.
    """
    try:
        if len(futures) == 1:
            return [await futures[0]]
        return list(await asyncio.gather(*futures))
    finally:
        while futures:
            futures.pop().cancel()
