"""A registry with model `double` on fake predictors, and the parts of the live comparison."""

from collections.abc import Iterator
from typing import Any

import pytest

from paddlepool.engine.process.suspension import Suspension
from paddlepool.evidence.live.shadow_predictor import ShadowPredictors
from tests.engine.driving import Loop
from tests.engine.fakes import FakeFactory
from tests.evidence.live.fakes import GateWithoutDelay, Live, RecordingLive


@pytest.fixture
def live(loop: Loop, registry: Any) -> Iterator[Live]:
    """Serves `double` 1: group `main` started, group `spare` on demand."""
    suspension, beside = Suspension(), FakeFactory()
    gate = GateWithoutDelay(suspension)
    predictors = ShadowPredictors(open_predictor=beside, idle_gate=gate)
    [served] = registry.served()
    yield Live(loop, registry, served, predictors, beside, gate, suspension, RecordingLive())
    gate.close()
