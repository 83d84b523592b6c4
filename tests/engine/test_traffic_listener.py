"""What the data plane tells those who stand by: every request's coming and going, every answer."""

from collections.abc import Sequence
from typing import Any

import pytest

from app.contracts.errors import DeadlineExceeded, InvalidParameter, ModelNotFound, WorkerCrashed
from app.contracts.tensors import Tensors
from app.engine.dataplane import DataPlane, TensorRequest
from app.engine.registry.model import ServedModel
from tests.engine.driving import Driven, Loop
from tests.engine.fakes import (
    Crash,
    FakeFactory,
    Gate,
    failing,
    row,
    wait_until,
)


class RecordingListener:
    def __init__(self) -> None:
        self.told: list[str] = []
        self.outputs: list[Tensors] = []

    def began(self) -> None:
        self.told.append("began")

    def ended(self) -> None:
        self.told.append("ended")

    def answered(
        self, served: ServedModel, group: str, jobs: Sequence[Tensors], outputs: Sequence[Tensors]
    ) -> None:
        self.told.append(f"answered by {served.name} {group}")
        self.outputs += outputs


@pytest.fixture
def traffic_listener() -> RecordingListener:
    return RecordingListener()


@pytest.fixture
def dataplane(loop: Loop, registry: Any, traffic_listener: RecordingListener) -> Any:
    dataplane = DataPlane(registry.it, default_models={}, traffic_listener=traffic_listener)
    return Driven(loop, dataplane)


def infer(dataplane: Any, *, group: str | None = None, timeout: float = 10) -> None:
    async def read(served: ServedModel) -> TensorRequest:
        return TensorRequest(inputs=row(1), group=group, priority=0, timeout=timeout)

    dataplane.infer("double", read)


def test_an_answer_is_told_with_its_group_and_outputs(
    dataplane: Any, traffic_listener: RecordingListener
) -> None:
    """While it still counts as a request, so that nothing else begins before it is told."""
    infer(dataplane)
    assert traffic_listener.told == ["began", "answered by double main", "ended"]
    assert traffic_listener.outputs[0]["y"].tolist() == [[2]]


def test_a_refused_request_comes_and_goes_without_an_answer(
    dataplane: Any, traffic_listener: RecordingListener
) -> None:
    """Whatever the reason."""
    with pytest.raises(InvalidParameter, match="main, spare"):
        infer(dataplane, group="nothing")
    with pytest.raises(ModelNotFound):
        dataplane.run("task", None, model="nothing", timeout=1)
    assert traffic_listener.told == ["began", "ended"] * 2


def test_a_deadline_that_a_starting_group_misses_says_so(
    dataplane: Any, factory: FakeFactory
) -> None:
    """The client learns that it may come again."""
    factory.selftest = gate = Gate()
    with pytest.raises(DeadlineExceeded, match="50 ms: instance group 'spare' has no predictor"):
        infer(dataplane, group="spare", timeout=0.05)
    gate.open()
    infer(dataplane, group="spare")


def test_a_deadline_that_a_restarting_group_misses_does_not_call_it_a_start(
    dataplane: Any, registry: Any, factory: FakeFactory
) -> None:
    """Its predictor was there and has crashed."""
    factory.selftest = gate = Gate()
    factory.behaviour = failing(lambda: Crash("gone"), times=1)
    with pytest.raises(WorkerCrashed):
        infer(dataplane)
    [served] = registry.served()
    wait_until(lambda: not served.ready())
    with pytest.raises(DeadlineExceeded, match="'main' has no predictor running"):
        infer(dataplane, timeout=0.05)
    gate.open()
    infer(dataplane)


def test_a_deadline_that_a_running_group_misses_is_just_that(
    dataplane: Any, factory: FakeFactory
) -> None:
    """Nothing is said of the group."""
    factory.behaviour = gate = Gate()
    with pytest.raises(DeadlineExceeded) as raised:
        infer(dataplane, timeout=0.05)
    gate.open()
    assert "group" not in raised.value.message
