"""The event loop copies little by itself: it has others to answer."""

import asyncio
import errno
import os
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import numpy as np
import pytest

from paddlepool.contracts.errors import BackendError, ModelNotReady, WorkerCrashed
from paddlepool.contracts.tensors import Tensors
from paddlepool.engine import concurrency
from paddlepool.engine.concurrency import NoThread
from paddlepool.engine.queue.job import INLINE_BYTES
from tests.engine.fakes import (
    PATIENCE,
    FakeFactory,
    FakePredictor,
    RecordingObserver,
    eventually,
    served_double,
    write_double,
)

WIDEST = INLINE_BYTES // 4
"""Numbers of a row that the loop copies by itself."""


def on_loop() -> bool:
    return threading.current_thread() is threading.main_thread()


def size(tensors: Tensors) -> int:
    return sum(array.nbytes for array in tensors.values())


class Copying:
    """Model `double`, whose outputs are as wide as the first number says; where its copies run."""

    def __init__(self, root: Path) -> None:
        self._loop = asyncio.get_running_loop()
        self.steps: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
        """Of each kind of copy the thread and the bytes."""
        self.fault: Callable[[], object] = lambda: None
        self.factory = FakeFactory(behaviour=_wide)
        self.observer = RecordingObserver()
        write_double(root)
        self.model = served_double(root, self.factory, self.observer)

    async def start(self) -> None:
        await self.model.start()
        self._watch(self.factory.opened[0])

    def _watch(self, predictor: FakePredictor) -> None:
        put, fetch = predictor.put, predictor.fetch

        def watched_put(inputs: Tensors) -> None:
            self._step("put", size(inputs))
            put(inputs)

        def watched_fetch() -> Any:
            ran = fetch()
            self._step("fetch", size(ran.outputs))
            return ran

        predictor.put, predictor.fetch = watched_put, watched_fetch  # type: ignore[method-assign]

    def _step(self, kind: str, nbytes: int) -> None:
        thread = threading.current_thread().name
        if not on_loop():
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self._loop).result(PATIENCE)
        self.steps[kind].append(("loop" if on_loop() else thread, nbytes))
        self.fault()

    def ask(self, width: int, output_width: int, *, jobs: int = 1) -> list[asyncio.Future[Any]]:
        inputs = {"x": np.zeros((1, width), np.float32)}
        inputs["x"][0, 0] = output_width
        checked = self.model.checked([inputs] * jobs)
        return self.model.submit_all(checked, deadline=time.monotonic() + PATIENCE)


def _wide(inputs: Tensors) -> Tensors:
    rows, width = len(inputs["x"]), int(inputs["x"][0, 0])
    return {"y": np.zeros((rows, width), np.float32)}


@pytest.fixture
async def copying(tmp_path: Path) -> AsyncIterator[Copying]:
    copying = Copying(tmp_path)
    await copying.start()
    yield copying
    await copying.model.close()


@pytest.mark.parametrize(
    ("width", "output_width", "jobs", "beside"),
    [
        pytest.param(WIDEST, WIDEST, 1, set(), id="as much as the loop copies"),
        pytest.param(WIDEST + 1, 1, 1, {"put"}, id="a large request"),
        pytest.param(1, WIDEST + 1, 1, {"fetch"}, id="a large answer"),
        pytest.param(WIDEST // 2 + 1, 1, 2, {"put"}, id="a large batch of small requests"),
        pytest.param(2, WIDEST // 2 + 1, 2, {"fetch"}, id="a large answer to several"),
    ],
)
async def test_what_is_large_is_copied_in_a_thread(
    copying: Copying, width: int, output_width: int, jobs: int, beside: set[str]
) -> None:
    """Named after its instance; the longest step of the loop is bounded by the bytes it copies."""
    for future in copying.ask(width, output_width, jobs=jobs):
        assert (await future).outputs["y"].shape == (1, output_width)
    assert {kind for kind, [(thread, _)] in copying.steps.items() if thread != "loop"} == beside
    for steps in copying.steps.values():
        for thread, nbytes in steps:
            assert thread in ("loop", "double@1 main 0 copy")
            assert (nbytes <= INLINE_BYTES) == (thread == "loop")


async def test_small_requests_are_answered_between_large_ones(copying: Copying) -> None:
    widths = [1, WIDEST + 1, 2, WIDEST + 2, WIDEST + 3, 3]
    futures = [copying.ask(width, width)[0] for width in widths]
    assert [(await future).outputs["y"].shape[1] for future in futures] == widths
    assert [nbytes for _, nbytes in copying.steps["put"]] == [4 * width for width in widths]


@pytest.mark.parametrize(("width", "output_width"), [(WIDEST + 1, 1), (1, WIDEST + 1)])
@pytest.mark.parametrize("dies", [False, True], ids=["refused", "died"])
async def test_a_copy_that_fails_costs_its_job(
    copying: Copying, width: int, output_width: int, dies: bool
) -> None:
    """And its process where that has died, or has an answer that would be the next request's."""
    [predictor] = copying.factory.opened

    def fault() -> None:
        if not on_loop():
            copying.fault = lambda: None
            if dies:
                predictor.die()
            raise WorkerCrashed("gone") if dies else ValueError("no room")

    copying.fault = fault
    [future] = copying.ask(width, output_width)
    if dies and width > 1:  # it had not begun
        assert (await future).outputs["y"].shape == (1, output_width)
    else:
        expected = WorkerCrashed if dies else BackendError
        with pytest.raises(expected):
            await future
    assert (await copying.ask(1, 1)[0]).outputs["y"].shape == (1, 1)
    untaken = ["corrupt"] if output_width > 1 else []
    assert copying.observer.restarts == (["killed"] if dies else untaken)


@pytest.mark.parametrize(("width", "output_width"), [(WIDEST + 1, 1), (1, WIDEST + 1)])
async def test_without_a_thread_to_be_had_nothing_is_lost(
    copying: Copying, monkeypatch: pytest.MonkeyPatch, width: int, output_width: int
) -> None:
    no_thread = NoThread(errno.EAGAIN, os.strerror(errno.EAGAIN))
    monkeypatch.setattr(concurrency, "in_thread", AsyncMock(side_effect=no_thread))
    outputs = (await copying.ask(width, output_width)[0]).outputs
    assert outputs["y"].shape == (1, output_width)
    [predictor] = copying.factory.opened
    predictor.die()
    assert (await copying.ask(1, 1)[0]).outputs["y"].shape == (1, 1)
    assert predictor.closed.is_set()


@pytest.mark.parametrize(("width", "output_width"), [(WIDEST + 1, 1), (1, WIDEST + 1)])
async def test_closing_waits_for_a_copy(copying: Copying, width: int, output_width: int) -> None:
    """The memory that it reads and writes stays until it has ended, and its job is settled."""
    gate, copying_began = threading.Event(), threading.Event()
    [predictor] = copying.factory.opened

    def wait() -> None:
        if not on_loop():
            copying_began.set()
            assert gate.wait(PATIENCE)
            assert not predictor.closed.is_set()

    copying.fault = wait
    [future] = copying.ask(width, output_width)
    await eventually(copying_began.is_set)
    closing = asyncio.create_task(copying.model.close())
    await eventually(predictor.aborted.is_set)
    gate.set()
    await closing
    assert predictor.closed.is_set()
    assert isinstance(future.exception(), ModelNotReady) == (width > 1)
