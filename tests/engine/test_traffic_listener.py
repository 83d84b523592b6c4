"""What the data plane tells those who stand by: every request's coming and going, every answer."""

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
from paddlepool.engine.registry.registry import ModelRegistry
from tests.engine.fakes import Crash, FakeFactory, Gate, eventually, failing, row


class Bench:
    """A data plane over model `double`, and who listens to it."""

    def __init__(self, registry: ModelRegistry, factory: FakeFactory) -> None:
        self.registry, self.factory, self.listener = registry, factory, Mock()
        self.dataplane = DataPlane(registry, default_models={}, traffic_listener=self.listener)

    async def infer(self, *, group: str | None = None, timeout: float = 10) -> None:
        async def read(served: ServedModel) -> TensorRequest:
            return TensorRequest(inputs=row(1), group=group, priority=0, timeout=timeout)

        await self.dataplane.infer("double", read)

    def calls(self) -> list[str]:
        """The names of the listener's calls, in order."""
        return [name for name, *_ in self.listener.mock_calls]


@pytest.fixture
def bench(registry: ModelRegistry, factory: FakeFactory) -> Bench:
    return Bench(registry, factory)


async def test_an_answer_is_told_with_its_group_and_outputs(bench: Bench) -> None:
    """While it still counts as a request, so that nothing else begins before it is told."""
    await bench.infer()
    assert bench.calls() == ["began", "completed", "ended"]
    served, group, _, [outputs] = bench.listener.completed.call_args.args
    assert (served.name, group, outputs["y"].tolist()) == ("double", "main", [[2]])


async def test_a_refused_request_comes_and_goes_without_an_answer(bench: Bench) -> None:
    """Whatever the reason."""
    with pytest.raises(InvalidParameter, match="main, spare"):
        await bench.infer(group="nothing")
    with pytest.raises(ModelNotFound):
        await bench.dataplane.run("task", None, model="nothing", timeout=1)
    assert bench.calls() == ["began", "ended"] * 2


async def test_a_deadline_missed_by_a_restarting_group_is_not_called_a_start(bench: Bench) -> None:
    """Its predictor was there and has crashed."""
    bench.factory.selftest = gate = Gate()
    bench.factory.behaviour = failing(lambda: Crash("gone"), times=1)
    with pytest.raises(WorkerCrashed):
        await bench.infer()
    [served] = bench.registry.served()
    await eventually(lambda: not served.ready())
    with pytest.raises(DeadlineExceeded, match="'main' has no predictor running"):
        await bench.infer(timeout=0.05)
    gate.open()
    await bench.infer()
