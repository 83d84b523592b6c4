"""Futures of threads, awaited: one wake-up, the first failure, and nothing left behind."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from app.awaiting import result_of, results_of, submitted_in

PATIENCE = 30.0


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


def test_what_is_submitted_for_somebody_who_has_left_is_cancelled() -> None:
    """The thread cannot be stopped; what it brings about can."""
    begun, gate = threading.Event(), threading.Event()
    futures: list[Future[int]] = [Future(), Future()]

    def submit() -> list[Future[int]]:
        begun.set()
        gate.wait(PATIENCE)
        return futures

    async def leave(executor: ThreadPoolExecutor) -> None:
        waiting = asyncio.create_task(submitted_in(executor, submit))
        await asyncio.to_thread(begun.wait, PATIENCE)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        gate.set()
        while not all(future.cancelled() for future in futures):  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.01)

    with ThreadPoolExecutor(1) as executor:
        asyncio.run(asyncio.wait_for(leave(executor), PATIENCE))


def test_a_refusal_in_a_thread_is_kept_by_nobody() -> None:
    """Nor is what was refused, until the garbage collector runs."""

    class Payload(list[int]):
        pass

    async def refused(executor: ThreadPoolExecutor) -> weakref.ref[Payload]:
        payload = Payload()

        def submit() -> list[Future[int]]:
            raise ValueError(len(payload))

        with pytest.raises(ValueError, match="0"):
            await submitted_in(executor, submit)
        return weakref.ref(payload)

    gc.disable()
    try:
        with ThreadPoolExecutor(1) as executor:
            assert asyncio.run(refused(executor))() is None
    finally:
        gc.enable()
