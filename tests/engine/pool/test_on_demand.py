"""Groups that start on demand: so many at a time, and the one unused for longest makes room."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.contracts.errors import BackendError, ModelNotReady, Overloaded
from app.engine.pool.context import OnDemand
from tests.engine.driving import Loop
from tests.engine.fakes import (
    PATIENCE,
    FakeFactory,
    Gate,
    RecordingObserver,
    row,
    served_double,
    wait_until,
    write_double,
)


class FakeGroup:
    def __init__(self) -> None:
        self.at_work = False
        self.stops = 0
        self.bytes = 0

    def resident_bytes(self) -> int:
        return self.bytes

    def idle(self) -> bool:
        return not self.at_work

    def stop(self) -> None:
        self.stops += 1


def test_the_one_unused_for_longest_makes_room() -> None:
    """Of those that nobody uses now."""
    on_demand = OnDemand(3)
    groups: list[Any] = [FakeGroup() for _ in range(5)]
    first, second, third, fourth, fifth = groups
    for group in (first, second, third, first):
        on_demand.use(group)
    second.at_work = True
    on_demand.use(fourth)
    on_demand.use(fifth)
    assert [group.stops for group in groups] == [1, 0, 1, 0, 0]


def test_no_group_is_started_beyond_the_memory() -> None:
    """Whoever is unused makes room first; with all at work the next choice is refused."""
    on_demand = OnDemand(10, max_bytes=1_000)
    groups: list[Any] = [FakeGroup() for _ in range(3)]
    first, second, third = groups
    on_demand.use(first)
    first.bytes = 600
    on_demand.use(second)
    second.bytes = 600
    on_demand.use(third)
    assert [group.stops for group in groups] == [1, 0, 0]
    third.bytes = 600
    second.at_work = third.at_work = True
    on_demand.use(third)  # it runs already
    with pytest.raises(Overloaded, match="hold 1200 bytes; no other starts from 1000 bytes on"):
        on_demand.use(first)


class Two:
    """Models a and b, whose groups `spare` start on demand: one of them at a time."""

    def __init__(self, loop: Loop, root: Path) -> None:
        self.factory = FakeFactory()
        one = OnDemand(1)
        for name in "ab":
            write_double(root / name)
        self.models = [
            served_double(loop, root / name, self.factory, RecordingObserver(), on_demand=one)
            for name in "ab"
        ]

    def ask(self, number: int, value: float) -> float:
        deadline = time.monotonic() + PATIENCE
        future = self.models[number].submit(row(value), group="spare", deadline=deadline)
        return float(future.result(timeout=PATIENCE).outputs["y"].item())

    def started(self) -> list[bool]:
        return [
            group.started
            for model in self.models
            for group in model.groups()
            if group.name == "spare"
        ]


@pytest.fixture
def two(loop: Loop, tmp_path: Path) -> Iterator[Two]:
    two = Two(loop, tmp_path)
    yield two
    two.factory.let_go()
    for model in two.models:
        model.close()


def test_a_stopped_group_starts_again(two: Two) -> None:
    """Its processes end when another needs the room, and its next request is answered as ever."""
    for number, value in ((0, 1), (1, 2), (0, 3), (0, 4)):
        wait_until(lambda: all(group.idle() for group in spares(two)))
        assert two.ask(number, value) == 2 * value
    assert two.started() == [True, False]
    first, second, third = two.factory.opened
    assert first.closed.wait(PATIENCE)
    assert second.closed.wait(PATIENCE)
    assert not third.closed.is_set()


def test_the_first_requests_wait_is_the_groups_start(two: Two) -> None:
    """And no queue's; the next finds it running, until it was stopped and starts again."""
    waited = []
    for number in (0, 0, 1, 0):
        wait_until(lambda: all(group.idle() for group in spares(two)))
        deadline = time.monotonic() + PATIENCE
        future = two.models[number].submit(row(1), group="spare", deadline=deadline)
        waited.append(future.result(timeout=PATIENCE))
    assert [result.start_up_seconds > 0 for result in waited] == [True, False, True, True]
    assert all(result.queue_seconds >= 0 for result in waited)


def test_a_group_at_work_keeps_its_processes(two: Two) -> None:
    """The other's request is refused before anything of it is done."""
    two.factory.behaviour = gate = Gate()
    future = two.models[0].submit(row(1), group="spare", deadline=time.monotonic() + PATIENCE)
    gate.wait_entered()
    with pytest.raises(Overloaded):
        two.ask(1, 2)
    with (
        pytest.raises(Overloaded),
        two.models[1].reserve(group="spare", deadline=time.monotonic() + PATIENCE),
    ):
        raise AssertionError("it was let in")
    gate.open()
    assert future.result(timeout=PATIENCE).outputs["y"].item() == 2  # type: ignore[union-attr]


def test_a_group_that_cannot_start_takes_no_room(two: Two) -> None:
    """It has no processes, and the others go on."""
    two.factory.refuse = BackendError("no such device")
    with pytest.raises(ModelNotReady):
        two.ask(0, 1)
    two.factory.refuse = None
    assert two.ask(1, 2) == 4


def test_an_unloaded_model_takes_no_room(two: Two) -> None:
    """Its groups are forgotten with it, also those at work."""
    assert two.ask(0, 1) == 2
    two.models[0].close()
    assert two.ask(1, 2) == 4
    with pytest.raises(ModelNotReady):
        two.ask(0, 1)


def spares(two: Two) -> list[Any]:
    return [model._groups["spare"] for model in two.models]  # type: ignore[misc]
