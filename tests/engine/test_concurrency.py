"""Work in threads, and several futures at once: the first failure, and nothing left behind."""

import asyncio
import errno
import gc
import os
import threading
from typing import Any

import pytest

from paddlepool.engine.concurrency import gather_or_cancel, in_thread

PATIENCE = 30.0


async def test_work_that_blocks_runs_in_a_thread_of_its_name() -> None:
    gate = threading.Event()

    def work() -> str:
        assert gate.wait(PATIENCE), "the loop stood still"
        return threading.current_thread().name

    working = asyncio.create_task(in_thread("a name", work))
    await asyncio.sleep(0)
    gate.set()
    assert await working == "a name"
    with pytest.raises(ValueError, match="no number"):
        await in_thread("another", lambda: int("no number"))


def test_work_goes_on_when_nobody_waits_for_it_any_more() -> None:
    """A thread cannot be stopped: its outcome goes nowhere, whether the loop is there or not."""
    begun, gate, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        gate.wait(PATIENCE)
        ended.set()
        raise ValueError("unheard")

    async def leave() -> None:
        waiting = asyncio.create_task(in_thread("work", work))
        while not begun.is_set():  # noqa: ASYNC110 - no event of the loop tells
            await asyncio.sleep(0.001)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(leave())
    gate.set()
    assert ended.wait(PATIENCE)
    for thread in threading.enumerate():
        if thread.name == "work":
            thread.join(PATIENCE)


def test_a_system_without_a_thread_to_give_is_told_like_one_without_a_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(OSError, match=os.strerror(errno.EAGAIN)) as raised:
        asyncio.run(in_thread("work", lambda: None))
    assert raised.value.errno == errno.EAGAIN


async def test_the_first_failure_ends_the_wait_and_cancels_the_others() -> None:
    loop = asyncio.get_running_loop()
    waiting, failed, done = (loop.create_future() for _ in range(3))
    failed.set_exception(ValueError("unlucky"))
    done.set_result(1)
    with pytest.raises(ValueError, match="unlucky"):
        await gather_or_cancel([waiting, failed, done])
    assert waiting.cancelled()


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("first", ["task", "future"])
async def test_a_task_and_its_futures_are_cancelled_together(count: int, first: str) -> None:
    loop = asyncio.get_running_loop()
    futures: list[asyncio.Future[int]] = [loop.create_future() for _ in range(count)]
    task = asyncio.create_task(gather_or_cancel(list(futures)))
    await asyncio.sleep(0)
    (task if first == "task" else futures[0]).cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert all(future.cancelled() for future in futures)


def test_a_second_failure_is_not_complained_of(caplog: pytest.LogCaptureFixture) -> None:
    """The request has failed already, and nobody else hears of the second."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[Any]] = [loop.create_future() for _ in range(2)]
        for future in futures:
            future.set_exception(ValueError("unlucky"))
        del future
        with pytest.raises(ValueError, match="unlucky"):
            await gather_or_cancel(futures)

    gc.collect()  # what other tests left behind
    caplog.clear()
    asyncio.run(main())
    gc.collect()
    assert caplog.messages == []
