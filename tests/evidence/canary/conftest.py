"""A registry whose model has the policy "canary", and the judge of its newest version."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from paddlepool.contracts.ports import PredictorSpec, RequestContext, ServedModelInfo
from paddlepool.contracts.status import CanaryStatus
from paddlepool.contracts.tensors import Tensors
from paddlepool.engine.dataplane import DataPlane, ready
from paddlepool.engine.process.suspension import Suspension
from paddlepool.engine.registry.promotions import Promotions
from paddlepool.engine.registry.registry import ModelRegistry
from paddlepool.evidence.canary.control import CanaryControl
from paddlepool.evidence.canary.judge import Judge
from paddlepool.evidence.live.shadow_predictor import ShadowPredictors
from tests.engine.chain import Answer, Between, Chain, write_composed
from tests.engine.fakes import (
    PATIENCE,
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
        model, version = spec.directory.parent.name, int(spec.directory.name)
        return self.of(version, model)(spec, suspension=suspension)

    def of(self, version: int, model: str = "double") -> FakeFactory:
        return self.factories.setdefault(f"{model}@{version}", FakeFactory(seconds=0.01))

    def open(self) -> int:
        """How many predictors are open."""
        opened = [predictor for one in self.factories.values() for predictor in one.opened]
        return sum(not predictor.closed.is_set() for predictor in opened)


class Bench:
    """A server without HTTP: what it serves, what it compares, and what it remembers."""

    model = "double"

    def __init__(self, root: Path, *, judge: str = "") -> None:
        """`judge` is the other replica that judges new versions; empty if there is none."""
        self.root, self.other_judge = root, judge
        self.state = root / "state" / "choices.canaries.json"
        self.clock = ManualClock()
        self.serving, self.beside = FakeFactory(), Versions()
        self.options: dict[str, Any] = {}
        self.slices: Callable[[Tensors], list[str]] | None = None

    def write(self, *versions: int, policy: str = POLICY) -> Path:
        model = write_double(self.root / "models", *versions)
        add_to_config(model, policy)
        return model

    def publish(
        self, version: int, program: bytes = b'{"program": 1}', model: str = "double"
    ) -> None:
        write_version(self.root / "models" / model / str(version), program=program)

    async def start(self) -> None:
        """Start, or start again as a server that has ended does."""
        self.gate = GateWithoutDelay(Suspension())
        self.promotions = Promotions(self.state, follows=bool(self.other_judge))
        self.registry: ModelRegistry = open_registry(
            self.root / "models", self.serving, promotions=self.promotions, **self.options
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
        return self.control.status(self.model)

    def served(self) -> list[int]:
        return [model.version for model in self.registry.served()]


class Traffic:
    """Offers each answered request to the judge, as the background thread's listener does."""

    def __init__(self, bench: "WholeBench") -> None:
        self.bench = bench

    def began(self) -> None: ...

    def ended(self) -> None: ...

    def completed(self, *_: Any) -> None: ...

    def answered(self, served: Any, payload: Any) -> None:
        self.bench.judge.offer(served, payload)


class Faulty(Chain):
    """A task whose code fails on requests, as `error` says."""

    error: Callable[[], Exception] | None = None

    async def run(self, payload: Any, context: RequestContext) -> Answer:
        if self.error is not None:
            raise self.error()
        return await super().run(payload, context)


class WholeBench(Bench):
    """`chain`, composed of `one` and `two`. Versions: see write()."""

    model = "chain"

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.pipelines: list[Faulty] = []
        self.options = {"build_pipeline": self._build}

    async def _build(self, info: ServedModelInfo) -> Chain | None:
        if info.pipeline is None:
            return None
        self.pipelines.append(Faulty(info, Between()))
        return self.pipelines[-1]

    def write(self, *versions: int, policy: str = POLICY, of: str = "two") -> Path:
        """Write version 1 of each part, and these of the part `of`."""
        models = self.root / "models"
        for name in ("one", "two"):
            write_double(models, *(versions if name == of else (1,)), name=name)
        write_composed(models)
        add_to_config(models / "chain", policy)
        return models

    async def start(self) -> None:
        await super().start()
        self.dataplane = DataPlane(
            self.registry, default_models={"chain": "chain"}, traffic_listener=Traffic(self)
        )

    async def request(self, *values: float) -> None:
        await self.dataplane.run("chain", ready(values or (1.0,)), timeout=PATIENCE)
        await self.step()

    def sets(self) -> dict[str, int]:
        """The versions that serve, by model; those that `chain` uses are the same."""
        served = {model.name: model.version for model in self.registry.all_served()}
        [chain] = self.registry.composed()
        assert {part.name: part.version for part in chain.parts.values()}.items() <= served.items()
        return served


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
