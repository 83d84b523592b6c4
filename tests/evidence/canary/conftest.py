"""A registry whose model `double` has the policy "canary", and the judge of its newest version."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from paddlepool.contracts.ports import PredictorSpec, ServedModelInfo
from paddlepool.contracts.status import CanaryStatus
from paddlepool.contracts.tensors import Tensors
from paddlepool.engine.process.suspension import Suspension
from paddlepool.engine.registry.promotions import Promotions
from paddlepool.engine.registry.registry import ModelRegistry
from paddlepool.evidence.canary.control import CanaryControl
from paddlepool.evidence.canary.judge import Judge
from paddlepool.evidence.live.shadow_predictor import ShadowPredictors
from tests.engine.fakes import (
    FakeFactory,
    FakePredictor,
    ManualClock,
    infer,
    open_registry,
    row,
    write_double,
)
from tests.evidence.live.fakes import GateWithoutDelay
from tests.model_files import add_to_config, write_version

POLICY = """
[version_policy]
kind = "canary"
requests = 40
agreement = 0.8
"""


@dataclass
class Versions:
    """Opens predictors as the FakeFactory of their version does."""

    factories: dict[str, FakeFactory] = field(default_factory=dict)

    def __call__(
        self, spec: PredictorSpec, *, suspension: Suspension | None = None
    ) -> FakePredictor:
        return self.of(int(spec.directory.name))(spec, suspension=suspension)

    def of(self, version: int) -> FakeFactory:
        return self.factories.setdefault(str(version), FakeFactory(seconds=0.01))

    def open(self) -> int:
        """How many predictors are open."""
        opened = [predictor for one in self.factories.values() for predictor in one.opened]
        return sum(not predictor.closed.is_set() for predictor in opened)


class Bench:
    """A server without HTTP: what it serves, what it compares, and what it remembers."""

    def __init__(self, root: Path, *, judge: str = "") -> None:
        """`judge` is the other replica that judges new versions; empty if there is none."""
        self.root, self.other_judge = root, judge
        self.state = root / "state" / "choices.canaries.json"
        self.clock = ManualClock()
        self.serving, self.beside = FakeFactory(), Versions()
        self.slices: Callable[[Tensors], list[str]] | None = None

    def write(self, *versions: int, policy: str = POLICY) -> Path:
        model = write_double(self.root / "models", *versions)
        add_to_config(model, policy)
        return model

    def publish(self, version: int, program: bytes = b'{"program": 1}') -> None:
        write_version(self.root / "models" / "double" / str(version), program=program)

    async def start(self) -> None:
        """Start, or start again as a server that has ended does."""
        self.gate = GateWithoutDelay(Suspension())
        self.promotions = Promotions(self.state, follows=bool(self.other_judge))
        self.registry: ModelRegistry = open_registry(
            self.root / "models", self.serving, promotions=self.promotions
        )
        await self.registry.load_all()
        self.control = CanaryControl(
            self.registry, self.promotions, wall_clock=self.clock, judge=self.other_judge
        )

        def slices_of(_: ServedModelInfo) -> Callable[[Tensors], list[str]] | None:
            return self.slices

        self.judge = Judge(
            self.registry,
            ShadowPredictors(self.beside, self.gate),
            self.control,
            slices_of=slices_of,
            clock=self.clock,
            wall_clock=self.clock,
        )
        self.judge.loop = asyncio.get_running_loop()

    async def stop(self, *, killed: bool = False) -> None:
        if not killed:
            self.judge.close()
        self.gate.close()
        await self.registry.close()

    async def step(self) -> bool:
        """What the server does again and again: follow others, compare one request."""
        await self.control.follow()
        return await asyncio.to_thread(self.judge.judge_one)

    async def request(self, *values: float) -> None:
        """A client's request, which is compared afterwards."""
        await self.registry_answers()
        [served] = self.registry.served()
        self.judge.offer(served, row(*(values or (1.0, 2.0))))
        await self.step()

    async def registry_answers(self) -> None:
        await infer(self.registry)

    async def requests(self, count: int) -> CanaryStatus:
        """Compare so many requests, or fewer if the verdict comes before; return the state."""
        for _ in range(count):
            if self.status().state != "testing":
                break
            await self.request()
        return self.status()

    def status(self) -> CanaryStatus:
        return self.control.status("double")

    def served(self) -> list[int]:
        return [model.version for model in self.registry.served()]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    await bench.stop()


@pytest.fixture
async def on_trial(bench: Bench) -> Bench:
    """Version 1 serves, and version 2 is on trial."""
    bench.write(1, 2)
    await bench.start()
    await bench.step()
    assert bench.status().state == "testing"
    return bench
