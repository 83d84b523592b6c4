"""Groups that start on demand: so many at a time, and the one unused for longest makes room."""

from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from unittest.mock import Mock

import pytest

from paddlepool.contracts.errors import BackendError, ModelNotReady, Overloaded
from paddlepool.contracts.ports import InferResult
from paddlepool.engine.pool.context import OnDemand
from tests.engine.driving import Loop
from tests.engine.fakes import (
    PATIENCE,
    FakeFactory,
    Gate,
    RecordingObserver,
    row,
    served_double,
    soon,
    wait_until,
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
    """Of those that nobody uses now."""
    on_demand = OnDemand(3)
    first, second, third, fourth, fifth = groups = idle_groups(5)
    for group in (first, second, third, first):
        on_demand.use(group)
    second.idle.return_value = False
    on_demand.use(fourth)
    on_demand.use(fifth)
    assert stops(groups) == [1, 0, 1, 0, 0]


def test_no_group_is_started_beyond_the_memory() -> None:
    """Whoever is unused makes room first; with all at work the next choice is refused."""
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

    def submit(self, number: int, value: float = 1) -> Future[InferResult]:
        model = self.models[number]
        future: Future[InferResult] = model.submit(row(value), group="spare", deadline=soon())
        return future

    def ask(self, number: int, value: float = 1) -> InferResult:
        result = self.submit(number, value).result(timeout=PATIENCE)
        assert result.outputs["y"].item() == 2 * value  # type: ignore[union-attr]
        return result

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
    """Its processes end when another needs the room. The wait of the first request is the start of
    the group, and no queue's; the next finds it running."""
    waited = []
    for number, value in ((0, 1), (0, 2), (1, 3), (0, 4)):
        wait_until(lambda: all(model._groups["spare"].idle() for model in two.models))
        waited.append(two.ask(number, value))
    assert [result.start_up_seconds > 0 for result in waited] == [True, False, True, True]
    assert all(result.queue_seconds >= 0 for result in waited)
    assert two.started() == [True, False]
    first, second, third = two.factory.opened
    assert first.closed.wait(PATIENCE)
    assert second.closed.wait(PATIENCE)
    assert not third.closed.is_set()


def test_a_group_at_work_keeps_its_processes(two: Two) -> None:
    """The other's request is refused before anything of it is done."""
    two.factory.behaviour = gate = Gate()
    future = two.submit(0)
    gate.wait_entered()
    with pytest.raises(Overloaded):
        two.ask(1)
    with pytest.raises(Overloaded), two.models[1].reserve(group="spare", deadline=soon()):
        raise AssertionError("it was let in")
    gate.open()
    assert future.result(timeout=PATIENCE).outputs["y"].item() == 2  # type: ignore[union-attr]


def test_a_group_that_cannot_start_takes_no_room(two: Two) -> None:
    """It has no processes, and the others go on."""
    two.factory.refuse = BackendError("no such device")
    with pytest.raises(ModelNotReady):
        two.ask(0, 1)
    two.factory.refuse = None
    two.ask(1, 2)


def test_an_unloaded_model_takes_no_room(two: Two) -> None:
    """Its groups are forgotten with it, also those at work."""
    two.ask(0, 1)
    two.models[0].close()
    two.ask(1, 2)
    with pytest.raises(ModelNotReady):
        two.ask(0, 1)
