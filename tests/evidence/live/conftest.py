"""A registry with model `double` on fake predictors, and the parts of the live comparison."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.engine.process.suspension import Suspension
from app.evidence.live.shadow_predictor import ShadowPredictors
from tests.engine.driving import Loop
from tests.engine.fakes import FakeFactory, open_registry, write_double
from tests.evidence.live.fakes import GateWithoutDelay, Live, RecordingLive


@pytest.fixture
def live(loop: Loop, tmp_path: Path) -> Iterator[Live]:
    """Serves `double` 1: group `main` started, group `spare` on demand."""
    suspension, beside = Suspension(), FakeFactory()
    gate = GateWithoutDelay(suspension)
    predictors = ShadowPredictors(open_predictor=beside, idle_gate=gate)
    write_double(tmp_path)
    registry = open_registry(loop, tmp_path, FakeFactory())
    registry.load_all()
    [served] = registry.served()
    yield Live(loop, registry, served, predictors, beside, gate, suspension, RecordingLive())
    registry.close()
    gate.close()
