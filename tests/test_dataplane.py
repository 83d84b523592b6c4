"""A request of several jobs: queued together, answered together, and failed together."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

import pytest

from app.contracts.errors import BackendError, Overloaded
from app.contracts.ports import Finished, Prepared
from app.contracts.tensors import Tensors
from app.dataplane import Answer, DataPlane
from app.engine.registry.registry import ModelRegistry
from app.observability.metrics import Metrics
from tests.engine.fakes import (
    DOUBLE,
    PATIENCE,
    FakeFactory,
    Gate,
    doubled,
    open_registry,
    row,
    wait_until,
)
from tests.model_files import write_config, write_version

T = TypeVar("T")


class OneJobEach:
    """A pipeline that makes a job of each number of the payload and gives the doubled numbers."""

    def __init__(self) -> None:
        self.released = 0
        self.slow: list[Callable[[], None]] | None = None
        """Where requests wait until they are called; None: nothing takes time."""

    def prepare(self, payload: Sequence[float], *, deadline: float) -> Future[Prepared]:
        jobs = tuple(row(number) for number in payload)
        prepared = Prepared(jobs=jobs, state=payload, stages={}, release=self._release)
        if self.slow is None:
            return _done(prepared)
        future: Future[Prepared] = Future()
        self.slow.append(lambda: future.set_result(prepared))
        return future

    def finish(
        self, prepared: Prepared, outputs: Sequence[Tensors], *, deadline: float
    ) -> Future[Finished]:
        return _done(Finished(value=[float(each["y"].item()) for each in outputs], stages={}))

    def close(self) -> None:
        pass

    def _release(self) -> None:
        self.released += 1


@pytest.fixture
def pipeline() -> OneJobEach:
    return OneJobEach()


@pytest.fixture
def factory() -> FakeFactory:
    return FakeFactory()


@pytest.fixture
def registry(tmp_path: Path, factory: FakeFactory, pipeline: OneJobEach) -> Iterator[ModelRegistry]:
    options = DOUBLE.format(batch=4, delay=0, queue=6, count=1)
    write_config(tmp_path / "double", 'pipeline = "several"\n' + options)
    write_version(tmp_path / "double" / "1")
    registry = open_registry(tmp_path, factory, build_pipeline=lambda info: pipeline)
    registry.load_all()
    yield registry
    registry.close()


@pytest.fixture
def dataplane(registry: ModelRegistry) -> DataPlane:
    return DataPlane(registry, observer=Metrics(build={}), default_models={"several": "double"})


async def ask(dataplane: DataPlane, *numbers: float) -> Answer:
    return await dataplane.run("several", numbers, timeout=PATIENCE)


def test_the_answers_stand_in_the_order_of_the_jobs(
    dataplane: DataPlane, factory: FakeFactory
) -> None:
    """Six jobs fill one batch of four and one of two: an idle predictor is not handed the first
    alone."""
    sizes = []

    def count(inputs: Tensors) -> Tensors:
        sizes.append(len(inputs["x"]))
        return doubled(inputs)

    factory.behaviour = count
    answer = asyncio.run(ask(dataplane, 1, 2, 3, 4, 5, 6))
    assert answer.value == [2, 4, 6, 8, 10, 12]
    assert sizes == [4, 2]


def test_one_job_that_fails_fails_the_request_at_once(
    dataplane: DataPlane, factory: FakeFactory, registry: ModelRegistry, pipeline: OneJobEach
) -> None:
    """While another batch of the same request still runs; what is queued is taken back."""
    gate = Gate()

    def behave(inputs: Tensors) -> Tensors:
        if 13 in inputs["x"]:
            raise BackendError("unlucky")
        return gate(inputs)

    factory.behaviour = behave
    # The batch of four fails whole, and again for its guilty job: that one comes first, so that
    # the gate then holds a job of a request that has its answer already.
    with pytest.raises(BackendError, match="unlucky"):
        asyncio.run(ask(dataplane, 13, 1, 2, 3, 4, 5))
    gate.wait_entered()
    [group] = [each for each in registry.served()[0].groups() if each.name == "main"]
    assert group.queue_depth == 0
    assert pipeline.released == 1
    gate.open()


def test_a_request_that_does_not_fit_the_queue_leaves_nothing_in_it(
    dataplane: DataPlane, factory: FakeFactory, registry: ModelRegistry
) -> None:
    """Seven jobs for a queue of six: refused whole, and the next request has all the room."""
    factory.behaviour = gate = Gate()

    async def both() -> Answer:
        with pytest.raises(Overloaded):
            await ask(dataplane, 1, 2, 3, 4, 5, 6, 7)
        gate.open()
        return await ask(dataplane, 8, 9)

    assert asyncio.run(both()).value == [16, 18]
    assert [seen["x"].ravel().tolist() for seen in gate.seen] == [[8, 9]]


def test_a_request_that_is_given_up_leaves_the_queue(
    dataplane: DataPlane, factory: FakeFactory, registry: ModelRegistry, pipeline: OneJobEach
) -> None:
    """Cancelling the task takes what has not started out of the queue."""
    factory.behaviour = gate = Gate()

    async def give_up() -> None:
        task = asyncio.create_task(ask(dataplane, 1, 2, 3, 4, 5, 6))
        await asyncio.to_thread(gate.wait_entered)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(give_up())
    [group] = [each for each in registry.served()[0].groups() if each.name == "main"]
    assert group.queue_depth == 0
    assert pipeline.released == 1
    gate.open()


def _done(value: T) -> Future[T]:
    future: Future[T] = Future()
    future.set_result(value)
    return future


def test_a_request_without_room_is_refused_before_its_work(
    dataplane: DataPlane, pipeline: OneJobEach, registry: ModelRegistry
) -> None:
    """Six places in the queue: the seventh picture is not even opened, and the six are answered."""
    pipeline.slow = []

    async def seven() -> list[Answer]:
        waiting = [asyncio.create_task(ask(dataplane, number)) for number in range(6)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="the queue is full: 6 jobs wait, limit 6"):
            await ask(dataplane, 7)
        assert pipeline.slow is not None
        assert len(pipeline.slow) == 6
        for proceed in pipeline.slow:
            proceed()
        return await asyncio.gather(*waiting)

    assert [answer.value for answer in asyncio.run(seven())] == [[2 * n] for n in range(6)]
    assert registry.served()[0].statistics().failure.count == 1


def test_who_leaves_while_its_work_is_done_gives_its_place_back(
    dataplane: DataPlane, pipeline: OneJobEach
) -> None:
    """And so does one whose picture turns out to be none."""
    pipeline.slow = []

    async def leave() -> Answer:
        for _ in range(3):
            waiting = [asyncio.create_task(ask(dataplane, number)) for number in range(6)]
            await asyncio.sleep(0)
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        pipeline.slow = None
        return await ask(dataplane, 1, 2, 3, 4, 5, 6)

    assert asyncio.run(leave()).value == [2, 4, 6, 8, 10, 12]


class Payload(list[float]):
    """A list that can be watched."""


@pytest.mark.parametrize("ending", ["answered", "failed", "refused", "left"])
def test_nothing_of_a_request_waits_for_the_garbage_collector(
    dataplane: DataPlane, pipeline: OneJobEach, factory: FakeFactory, ending: str
) -> None:
    """Pictures and tensors go with their request: the collector comes by when small things have
    piled up, and large ones would by then fill the memory."""

    def refuse(inputs: Tensors) -> Tensors:
        raise BackendError("unlucky")

    if ending == "failed":
        factory.behaviour = refuse
    if ending == "left":
        pipeline.slow = []
    watched: list[weakref.ref[Payload]] = []

    async def one() -> None:
        payload = Payload([1.0, 2.0] if ending != "refused" else [1.0] * 7)
        watched.append(weakref.ref(payload))
        asked = asyncio.create_task(dataplane.run("several", payload, timeout=PATIENCE))
        del payload
        if ending == "left":
            await asyncio.sleep(0)
            asked.cancel()
        [found] = await asyncio.gather(asked, return_exceptions=True)
        assert isinstance(found, Answer) == (ending == "answered")

    async def several() -> None:
        for _ in range(3):
            await one()

    gc.collect()
    gc.disable()
    try:
        asyncio.run(several())
        if pipeline.slow:
            pipeline.slow.clear()
        wait_until(lambda: [payload() for payload in watched] == [None] * 3)
    finally:
        gc.enable()
