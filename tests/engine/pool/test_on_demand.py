"""Groups that start on demand: so many at a time, and the one unused for longest makes room."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from paddlepool.contracts.errors import BackendError, ModelNotReady, Overloaded
from paddlepool.contracts.ports import InferResult
from paddlepool.contracts.status import GroupStatus
from paddlepool.engine.pool.context import OnDemand
from tests.engine.fakes import (
    PATIENCE,
    FakeFactory,
    Gate,
    ManualClock,
    RecordingObserver,
    eventually,
    row,
    served_double,
    soon,
    write_double,
)


def idle_groups(count: int) -> list[Mock]:
    """So many that nobody uses now, which hold no memory."""
    return [
        Mock(**{"idle.return_value": True, "resident_bytes.return_value": 0}) for _ in range(count)
    ]


def stops(groups: list[Mock]) -> list[int]:
    return [group.stop.call_count for group in groups]


def test_the_one_unused_for_longest_makes_room() -> None:
    on_demand = OnDemand(3)
    first, second, third, fourth, fifth = groups = idle_groups(5)
    for group in (first, second, third, first):
        on_demand.use(group)
    second.idle.return_value = False
    on_demand.use(fourth)
    on_demand.use(fifth)
    assert stops(groups) == [1, 0, 1, 0, 0]


def test_no_group_is_started_beyond_the_memory() -> None:
    on_demand = OnDemand(10, max_bytes=1_000)
    first, second, third = groups = idle_groups(3)
    for group in groups:
        on_demand.use(group)
        group.resident_bytes.return_value = 600
    assert stops(groups) == [1, 0, 0]
    second.idle.return_value = third.idle.return_value = False
    on_demand.use(third)  # it runs already
    with pytest.raises(Overloaded, match="hold 1200 bytes; no other starts from 1000 bytes on"):
        on_demand.use(first)


class Lazy:
    """A model whose default group starts on demand, with two processes."""

    def __init__(self, root: Path, **options: Any) -> None:
        self.factory = FakeFactory()
        write_double(root, start="on_demand", count=2)
        options.setdefault("on_demand", OnDemand(0))
        self.model = served_double(root, self.factory, RecordingObserver(), **options)

    async def run(self) -> InferResult:
        result = await self.model.submit(row(1), deadline=soon())
        assert result.outputs["y"].item() == 2  # type: ignore[union-attr]
        return result


class Two:
    """Models a and b, whose groups `spare` start on demand: one of them at a time."""

    def __init__(self, root: Path) -> None:
        self.factory = FakeFactory()
        one = OnDemand(1)
        for name in "ab":
            write_double(root / name)
        self.models = [
            served_double(root / name, self.factory, RecordingObserver(), on_demand=one)
            for name in "ab"
        ]

    def submit(self, number: int, value: float = 1) -> asyncio.Future[InferResult]:
        return self.models[number].submit(row(value), group="spare", deadline=soon())

    async def run(self, number: int, value: float = 1) -> InferResult:
        result = await self.submit(number, value)
        assert result.outputs["y"].item() == 2 * value  # type: ignore[union-attr]
        return result

    def spares(self) -> list[GroupStatus]:
        return [group for model in self.models for group in model.groups() if group.name == "spare"]

    def idle(self) -> bool:
        return all(group.inflight == group.queue_depth == 0 for group in self.spares())


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Two]:
    two = Two(tmp_path)
    yield two
    two.factory.open_gate()
    for model in two.models:
        await model.close()


async def test_a_stopped_group_starts_again(two: Two) -> None:
    """The wait of the first request is the start of the group, and no time in a queue."""
    results = []
    for number, value in ((0, 1), (0, 2), (1, 3), (0, 4)):
        await eventually(two.idle)
        results.append(await two.run(number, value))
    assert [result.start_up_seconds > 0 for result in results] == [True, False, True, True]
    assert all(result.queue_seconds >= 0 for result in results)
    assert [group.started for group in two.spares()] == [True, False]
    first, second, third = two.factory.opened
    await eventually(first.closed.is_set)
    await eventually(second.closed.is_set)
    assert not third.closed.is_set()


async def test_a_group_at_work_keeps_its_processes(two: Two) -> None:
    two.factory.behaviour = gate = Gate()
    future = two.submit(0)
    await gate.entered()
    with pytest.raises(Overloaded):
        await two.run(1)
    with pytest.raises(Overloaded), two.models[1].reserve(group="spare", deadline=soon()):
        raise AssertionError("it was let in")
    gate.open()
    assert (await future).outputs["y"].item() == 2  # type: ignore[union-attr]


async def test_a_group_that_cannot_start_takes_no_room(two: Two) -> None:
    two.factory.refuse = BackendError("no such device")
    with pytest.raises(ModelNotReady):
        await two.run(0, 1)
    two.factory.refuse = None
    await two.run(1, 2)


async def test_an_unloaded_model_takes_no_room(two: Two) -> None:
    await two.run(0, 1)
    await two.models[0].close()
    await two.run(1, 2)
    with pytest.raises(ModelNotReady):
        await two.run(0, 1)


@pytest.fixture
async def lazy(tmp_path: Path) -> AsyncIterator[Lazy]:
    lazy = Lazy(tmp_path)
    await lazy.model.start()
    yield lazy
    lazy.factory.open_gate()
    await lazy.model.close()


async def test_a_default_group_starts_with_its_first_request(lazy: Lazy) -> None:
    assert not lazy.factory.opened
    assert lazy.model.ready()
    assert not lazy.model.running
    result = await lazy.run()
    assert result.group == "main"
    assert result.start_up_seconds > 0
    assert lazy.model.running
    # Requests wait for the first process, so it is never suspended.
    await eventually(lambda: len(lazy.factory.pauses) == 2)
    assert [pause is None for pause in lazy.factory.pauses] == [True, False]


async def test_a_default_group_is_not_limited(lazy: Lazy) -> None:
    """OnDemand bounds what clients may start by name, and the limit here is 0."""
    with pytest.raises(Overloaded):
        lazy.model.submit(row(1), group="spare", deadline=soon())
    await lazy.run()


async def test_a_place_in_the_queue_starts_it(lazy: Lazy) -> None:
    """All parts of a composed model open at once, before the first of them has answered."""
    lazy.model.load_of("main")
    assert lazy.model.running


async def test_a_default_group_that_cannot_start_is_not_ready(lazy: Lazy) -> None:
    lazy.factory.refuse = BackendError("no such device")
    with pytest.raises(ModelNotReady, match="'main' cannot start"):
        await lazy.run()
    assert not lazy.model.ready()
    [main, _] = lazy.model.groups()
    assert main.reason == "cannot start: no such device"


async def test_an_unused_group_is_stopped(tmp_path: Path) -> None:
    lazy = Lazy(tmp_path, on_demand_idle_seconds=0.01)
    for _ in range(2):
        await lazy.run()
        opened = list(lazy.factory.opened)
        await eventually(lambda: not lazy.model.running)
        for predictor in opened:
            await eventually(predictor.closed.is_set)
        assert lazy.model.ready()
    await lazy.model.close()


async def test_a_group_at_work_is_not_stopped(tmp_path: Path) -> None:
    clock = ManualClock()
    lazy = Lazy(tmp_path, on_demand_idle_seconds=0.01, clock=clock)
    lazy.factory.behaviour = gate = Gate()
    running = lazy.model.submit(row(1), deadline=clock() + PATIENCE)
    await gate.entered()
    clock.advance(1)
    for _ in range(3):  # checks of the group's timer
        checked = asyncio.Event()
        asyncio.get_running_loop().call_later(0.01, checked.set)
        await checked.wait()
    gate.open()
    assert (await running).outputs["y"].item() == 2  # type: ignore[union-attr]
    await eventually(lambda: not lazy.model.running)
    await lazy.model.close()
