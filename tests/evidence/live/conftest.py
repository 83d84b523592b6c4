"""A registry with model `double` on fake predictors, and the parts of the live comparison."""

from collections.abc import AsyncIterator

import pytest

from paddlepool.engine.process.suspension import Suspension
from paddlepool.engine.registry.registry import ModelRegistry
from paddlepool.evidence.live.shadow_predictor import ShadowPredictors
from tests.engine.fakes import FakeFactory
from tests.evidence.live.fakes import GateWithoutDelay, Live, RecordingLive


@pytest.fixture
async def live(registry: ModelRegistry) -> AsyncIterator[Live]:
    """Serves `double` 1: group `main` started, group `spare` on demand."""
    suspension, beside = Suspension(), FakeFactory()
    gate = GateWithoutDelay(suspension)
    predictors = ShadowPredictors(open_predictor=beside, idle_gate=gate)
    [served] = registry.served()
    yield Live(registry, served, predictors, beside, gate, suspension, RecordingLive())
    gate.close()
