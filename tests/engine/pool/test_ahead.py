"""A batch lies ready behind the one that runs, and is not lost with it."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from paddlepool.contracts.errors import BackendError, ModelNotReady, WorkerCrashed
from paddlepool.contracts.ports import InferResult
from paddlepool.contracts.reasons import Restart
from paddlepool.contracts.tensors import Tensors
from paddlepool.engine.queue.batcher import SHORT_RUN_SECONDS
from tests.engine.fakes import (
    PATIENCE,
    Crash,
    FakeFactory,
    FakePredictor,
    Gate,
    RecordingObserver,
    doubled,
    eventually,
    row,
    served_double,
    write_double,
)

Values = list[float]


class Served:
    """Model `double` with batches of up to two, and one predictor whose runs are short."""

    def __init__(self, root: Path) -> None:
        self.factory = FakeFactory(seconds=0.01)
        self.observer = RecordingObserver()
        write_double(root, batch=2, queue=256)
        self.model = served_double(root, self.factory, self.observer)
        self.began: list[Values] = []

    async def start(self) -> None:
        """With one run, which shows how long runs take."""
        await self.model.start()
        await self.submit(0)

    @property
    def predictor(self) -> FakePredictor:
        return self.factory.opened[-1]

    def behave(self, *, crashes: float | None = None, refuses: float | None = None) -> Gate:
        """Runs wait at the gate from now on, and one with such a value ends badly."""

        def run(inputs: Tensors) -> Tensors:
            values = inputs["x"].ravel().tolist()  # type: ignore[union-attr]
            self.began.append(values)
            if crashes in values:
                raise Crash("gone")
            if refuses in values:
                raise BackendError("bad value")
            return doubled(inputs)

        self.factory.behaviour = gate = Gate(run)
        return gate

    async def run_behind(
        self, *values: float, **ends: float
    ) -> tuple[Gate, list[asyncio.Future[InferResult]]]:
        """Batches of these values, the first at the gate and the next sent behind it."""
        gate = self.behave(**ends)
        futures = self.pair(*values)
        await gate.entered()
        assert self.behind() == 1
        return gate, futures

    def submit(self, value: float, *, seconds: float = PATIENCE) -> asyncio.Future[InferResult]:
        return self.pair(value, seconds=seconds)[0]

    def pair(self, *values: float, seconds: float = PATIENCE) -> list[asyncio.Future[InferResult]]:
        """Jobs that enter the queue together, for the same batch."""
        checked = self.model.checked([row(value) for value in values])
        return self.model.submit_all(checked, deadline=time.monotonic() + seconds)

    def behind(self) -> int:
        """How many batches lie ready behind the one that runs."""
        return self.predictor.waiting()


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    served = Served(tmp_path)
    await served.start()
    yield served
    served.factory.open_gate()
    await served.model.close()


async def results(futures: list[asyncio.Future[InferResult]]) -> list[float]:
    return [(await future).outputs["y"].item() for future in futures]  # type: ignore[union-attr]


async def all_fail(futures: list[asyncio.Future[InferResult]], error: type[Exception]) -> bool:
    await asyncio.wait(futures)
    return all(isinstance(future.exception(), error) for future in futures)


async def test_the_next_batch_is_there_when_a_run_ends(served: Served) -> None:
    """One behind the run and no more; each job gets its own result, in whatever order they came."""
    gate = served.behave()
    futures = served.pair(1, 2, 3, 4, 5, 6)
    for behind in (1, 1, 0):
        await gate.entered()
        await eventually(lambda behind=behind: served.behind() == behind)  # type: ignore[misc]
        gate.let_one_pass()
    assert await results(futures) == [2, 4, 6, 8, 10, 12]
    assert served.began == [[1, 2], [3, 4], [5, 6]]


async def test_a_batch_that_a_job_could_join_waits_for_the_end_of_the_run(served: Served) -> None:
    gate = served.behave()
    futures = [served.submit(1)]
    await gate.entered()
    futures += [served.submit(2)]
    await asyncio.sleep(0)
    assert served.behind() == 0
    futures += [served.submit(3)]
    await asyncio.sleep(0)
    assert served.behind() == 1
    gate.open()
    assert await results(futures) == [2, 4, 6]
    assert served.began == [[1], [2, 3]]


@pytest.mark.parametrize("what", ["long", "large"])
async def test_nothing_lies_behind_where_it_would_gain_nothing(
    served: Served, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither behind a long run nor where the batch is large."""
    if what == "long":
        served.factory.seconds = 1.2 * SHORT_RUN_SECONDS
        for _ in range(9):
            await served.submit(0)
    else:
        monkeypatch.setattr("paddlepool.engine.queue.batcher.INLINE_BYTES", row(0)["x"].nbytes)
    gate = served.behave()
    futures = served.pair(1, 2, 3, 4)
    await gate.entered()
    assert served.behind() == 0
    gate.open()
    assert await results(futures) == [2, 4, 6, 8]


async def test_a_crash_costs_the_run_it_happened_in(served: Served) -> None:
    gate, futures = await served.run_behind(1, 2, 3, 4, 5, 6, crashes=2)
    gate.open()
    assert await all_fail(futures[:2], WorkerCrashed)
    assert await results(futures[2:]) == [6, 8, 10, 12]
    assert served.began == [[1, 2], [3, 4], [5, 6]]
    assert (served.observer.restarts, len(served.factory.opened)) == (["crashed"], 2)


async def test_a_refused_batch_is_divided_behind_the_one_under_way(served: Served) -> None:
    gate, [good, bad, third, fourth] = await served.run_behind(1, 2, 3, 4, refuses=2)
    gate.open()
    with pytest.raises(BackendError):
        await bad
    assert await results([good, third, fourth]) == [2, 6, 8]
    assert served.began == [[1, 2], [3, 4], [1], [2]]
    assert served.observer.restarts == []


@pytest.mark.parametrize("under_way", ["nothing", "a lost run", "a run that ends"])
async def test_what_cannot_be_sent_is_kept(
    served: Served, monkeypatch: pytest.MonkeyPatch, under_way: str
) -> None:
    """A predictor found dead when a batch is sent costs the run under way and nobody else."""
    predictor = served.predictor
    before: list[asyncio.Future[InferResult]] = []
    if under_way != "nothing":
        gate = served.behave()
        before = served.pair(1, 2)
        await gate.entered()

    def dead(_: Tensors) -> None:
        if under_way == "a run that ends":
            predictor.dead = Restart.KILLED
        else:
            predictor.die()
        raise WorkerCrashed("gone")

    monkeypatch.setattr(predictor, "send", dead)
    unsent = served.pair(3, 4)
    if under_way == "a lost run":
        assert await all_fail(before, WorkerCrashed)
    served.factory.open_gate()
    if under_way == "a run that ends":
        assert await results(before) == [2, 4]
        predictor.die()
    assert await results(unsent) == [6, 8]
    assert served.observer.restarts == [Restart.KILLED]


@pytest.mark.parametrize("step", ["put", "send"])
async def test_a_batch_that_cannot_be_written_fails_alone(
    served: Served, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    work = getattr(served.predictor, step)
    written: list[Any] = []

    def refuse(inputs: Tensors) -> None:
        if (inputs["x"] == 2).any():  # type: ignore[attr-defined, union-attr]
            raise ValueError("too long")
        written.append(inputs)
        work(inputs)

    monkeypatch.setattr(served.predictor, step, refuse)
    good, bad, *others = served.pair(1, 2, 3, 4, 5, 6)
    with pytest.raises(BackendError):
        await bad
    assert await results([good, *others]) == [2, 6, 8, 10, 12]
    assert await results([served.submit(7)]) == [14]
    assert len(written) == 4
    assert served.observer.restarts == []
    assert [group.inflight for group in served.model.groups()] == [0, 0]


async def test_as_many_as_wait_may_fail_to_be_written(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = served.predictor.put

    def full(_: Tensors) -> None:
        raise OSError("no space left")

    gate = served.behave()
    blocker = served.submit(0)
    await gate.entered()
    monkeypatch.setattr(served.predictor, "put", full)
    futures = served.pair(*range(255))
    gate.open()
    assert await results([blocker]) == [0]
    assert await all_fail(futures, BackendError)
    monkeypatch.setattr(served.predictor, "put", put)
    assert await results([served.submit(4)]) == [8]


async def test_closing_settles_what_was_handed_over(served: Served) -> None:
    _, futures = await served.run_behind(1, 2, 3, 4)
    await served.model.close()
    assert served.predictor.aborted.is_set()
    assert await all_fail(futures[:2], WorkerCrashed)
    assert await all_fail(futures[2:], ModelNotReady)
    assert (served.observer.restarts, len(served.factory.opened)) == ([], 1)
    assert served.predictor.closed.is_set()
