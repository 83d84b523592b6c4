"""Futures of threads, awaited: one wake-up, the first failure, and nothing left behind."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from app.awaiting import result_of, results_of


def done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def test_the_event_loop_is_woken_once_for_all_futures(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wake-up takes the interpreter from the thread that settles them."""
    futures: list[Future[int]] = [Future() for _ in range(5)]
    woken = 0

    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        wake = loop.call_soon_threadsafe

        def count(callback: Callable[..., object], *arguments: Any, **options: Any) -> Any:
            nonlocal woken
            woken += 1
            return wake(callback, *arguments, **options)

        monkeypatch.setattr(loop, "call_soon_threadsafe", count)
        for number, future in enumerate(futures):
            loop.call_soon(future.set_result, number)
        return await results_of(list(futures))

    assert asyncio.run(main()) == [0, 1, 2, 3, 4]
    assert woken == 1


def test_the_first_failure_ends_the_wait_and_cancels_the_others() -> None:
    """Also where it is not the first of the list."""
    waiting: Future[int] = Future()
    failed: Future[int] = Future()
    failed.set_exception(ValueError("unlucky"))
    with pytest.raises(ValueError, match="unlucky"):
        asyncio.run(results_of([waiting, failed, done(1)]))
    assert waiting.cancelled()


def test_a_task_and_its_future_are_cancelled_together() -> None:
    """Whichever is cancelled first."""
    ours: Future[int] = Future()
    theirs: Future[int] = Future()

    async def main() -> None:
        tasks = [asyncio.create_task(result_of(each)) for each in (ours, theirs)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        theirs.cancel()
        await asyncio.wait(tasks)
        assert [task.cancelled() for task in tasks] == [True, True]

    asyncio.run(main())
    assert ours.cancelled()


def test_a_future_that_is_done_costs_no_turn_of_the_loop() -> None:
    """Its result is there when the coroutine is first asked."""
    with pytest.raises(StopIteration) as returned:
        result_of(done(7)).send(None)
    assert returned.value.value == 7


def test_an_error_does_not_keep_its_future() -> None:
    """It is raised through frames that have let go of the future by then."""

    async def main() -> None:
        with ThreadPoolExecutor(1) as pool:
            futures = [pool.submit(int, "no number"), pool.submit(int, "1")]
            watched = [weakref.ref(each) for each in futures]
            with pytest.raises(ValueError, match="no number") as raised:
                await results_of(futures)
            pool.shutdown()
            assert [future() for future in watched] == [None, None]
            del raised

    gc.disable()
    try:
        asyncio.run(main())
    finally:
        gc.enable()
