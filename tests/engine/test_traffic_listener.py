"""What the data plane tells those who stand by: every request's coming and going, every answer."""

from typing import Any
from unittest.mock import Mock

import pytest

from paddlepool.contracts.errors import (
    DeadlineExceeded,
    InvalidParameter,
    ModelNotFound,
    WorkerCrashed,
)
from paddlepool.engine.dataplane import DataPlane, TensorRequest
from paddlepool.engine.registry.model import ServedModel
from tests.engine.driving import Driven, Loop
from tests.engine.fakes import Crash, FakeFactory, Gate, failing, row, wait_until


class Bench:
    """A data plane over model `double`, and who listens to it."""

    def __init__(self, loop: Loop, registry: Any, factory: FakeFactory) -> None:
        self.registry, self.factory, self.listener = registry, factory, Mock()
        dataplane = DataPlane(registry.it, default_models={}, traffic_listener=self.listener)
        self.dataplane: Any = Driven(loop, dataplane)

    def infer(self, *, group: str | None = None, timeout: float = 10) -> None:
        async def read(served: ServedModel) -> TensorRequest:
            return TensorRequest(inputs=row(1), group=group, priority=0, timeout=timeout)

        self.dataplane.infer("double", read)

    def told(self) -> list[str]:
        """What the listener was told, one after the other."""
        return [name for name, *_ in self.listener.mock_calls]


@pytest.fixture
def bench(loop: Loop, registry: Any, factory: FakeFactory) -> Bench:
    return Bench(loop, registry, factory)


def test_an_answer_is_told_with_its_group_and_outputs(bench: Bench) -> None:
    """While it still counts as a request, so that nothing else begins before it is told."""
    bench.infer()
    assert bench.told() == ["began", "completed", "ended"]
    served, group, _, [outputs] = bench.listener.completed.call_args.args
    assert (served.name, group, outputs["y"].tolist()) == ("double", "main", [[2]])


def test_a_refused_request_comes_and_goes_without_an_answer(bench: Bench) -> None:
    """Whatever the reason."""
    with pytest.raises(InvalidParameter, match="main, spare"):
        bench.infer(group="nothing")
    with pytest.raises(ModelNotFound):
        bench.dataplane.run("task", None, model="nothing", timeout=1)
    assert bench.told() == ["began", "ended"] * 2


def test_a_deadline_that_a_restarting_group_misses_does_not_call_it_a_start(bench: Bench) -> None:
    """Its predictor was there and has crashed."""
    bench.factory.selftest = gate = Gate()
    bench.factory.behaviour = failing(lambda: Crash("gone"), times=1)
    with pytest.raises(WorkerCrashed):
        bench.infer()
    [served] = bench.registry.served()
    wait_until(lambda: not served.ready())
    with pytest.raises(DeadlineExceeded, match="'main' has no predictor running"):
        bench.infer(timeout=0.05)
    gate.open()
    bench.infer()
