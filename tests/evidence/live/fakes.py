"""An observer of the live comparison that remembers, and behaviours of predictors."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from paddlepool.contracts.errors import BackendError
from paddlepool.contracts.ports import PredictorSpec, RunResult
from paddlepool.contracts.tensors import Tensors
from paddlepool.engine.process.suspension import Suspension
from paddlepool.engine.registry.model import ServedModel
from paddlepool.engine.registry.registry import ModelRegistry
from paddlepool.evidence.live.background import Shadow
from paddlepool.evidence.live.shadow_predictor import IdleGate, ShadowPredictors
from tests.engine.fakes import FakeFactory, FakePredictor


class GateWithoutDelay(IdleGate):
    """Needs no event loop, for it settles with the last answer."""

    def ended(self) -> None:
        self._requests -= 1
        if not self._requests:
            self._on_idle()


class RecordingLive:
    def __init__(self) -> None:
        self.batches: list[dict[str, Any]] = []
        self.drifts: list[dict[str, Any]] = []
        self.outcomes: list[str] = []

    def batch_done(self, **batch: Any) -> None:
        self.batches.append(batch)

    def drifted(self, **drift: Any) -> None:
        self.drifts.append(drift)

    def shadowed(self, *, model: str, outcome: str) -> None:
        self.outcomes.append(outcome)


@dataclass(frozen=True)
class Live:
    registry: ModelRegistry
    served: ServedModel
    predictors: ShadowPredictors
    beside: FakeFactory
    """Opens the predictors beside the service."""
    gate: IdleGate
    suspension: Suspension
    observer: RecordingLive


def shadow_of(live: Live, registry: ModelRegistry | None = None, **changes: Any) -> Shadow:
    """Replays every request on the group `spare`."""
    options: dict[str, Any] = {
        "fraction": 1.0,
        "groups": ("spare",),
        "max_predictors": 4,
        "observer": live.observer,
        "agreement_of": lambda info: None,
        "draw": lambda: 0.0,
    }
    return Shadow(registry or live.registry, live.predictors, **options | changes)


def nudged(inputs: Tensors) -> Tensors:
    """2 x + 0.25: passes no self-test, so it is only for the runs after it."""
    return {"y": 2 * inputs["x"] + 0.25}  # type: ignore[operator]


class PacedPredictor(FakePredictor):
    """Takes as many seconds a run as its group's options say, divided and multiplied by `swing` in
    turns, and adds `off` to its outputs; with `fails` no run of a comparison comes back."""

    def __init__(self, factory: FakeFactory, options: Mapping[str, Any]) -> None:
        super().__init__(factory)
        self._options = options
        self.resident = int(options.get("resident", 1 << 20))
        self._swing = float(options.get("swing", 1))

    def work(self, inputs: Tensors) -> Tensors:
        outputs = super().work(inputs)
        off = np.float32(self._options.get("off", 0))
        return {name: np.add(array, off) for name, array in outputs.items()}

    def receive(self, *, timeout: float) -> RunResult:
        run = super().receive(timeout=timeout)
        if reason := self._options.get("fails"):
            raise BackendError(str(reason))
        self._swing = 1 / self._swing
        return RunResult(run.outputs, float(self._options["seconds"]) * self._swing)


class PacedFactory(FakeFactory):
    """Opens predictors that are as fast as `seconds` of their options; `refuse` there refuses a
    group, and so does `gone` those of so many seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.gone: dict[float, str] = {}

    def __call__(
        self, spec: PredictorSpec, *, suspension: Suspension | None = None
    ) -> FakePredictor:
        if reason := spec.options.get("refuse") or self.gone.get(spec.options["seconds"]):
            raise BackendError(str(reason))
        predictor = PacedPredictor(self, spec.options)
        predictor.suspension = suspension
        self.opened.append(predictor)
        return predictor
