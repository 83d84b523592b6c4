"""A registry with model `double` on fake predictors, and the parts of the live comparison."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.engine.registry.model import ServedModel
from app.engine.registry.registry import ModelRegistry
from app.live.idle_gate import IdleGate
from app.live.shadow_predictor import ShadowPredictors
from app.process.suspension import Suspension
from tests.engine.fakes import FakeFactory, open_registry, write_double


@pytest.fixture
def suspension() -> Suspension:
    return Suspension()


@pytest.fixture
def idle_gate(suspension: Suspension) -> Iterator[IdleGate]:
    idle_gate = IdleGate(suspension)
    yield idle_gate
    idle_gate.close()


@pytest.fixture
def beside() -> FakeFactory:
    """What opens the predictors beside the service."""
    return FakeFactory()


@pytest.fixture
def shadow_predictors(
    beside: FakeFactory, suspension: Suspension, idle_gate: IdleGate
) -> ShadowPredictors:
    return ShadowPredictors(open_predictor=beside, suspension=suspension, idle_gate=idle_gate)


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[ModelRegistry]:
    """Serves `double` 1: group `main` started, group `spare` on demand."""
    write_double(tmp_path)
    registry = open_registry(tmp_path, FakeFactory())
    registry.load_all()
    yield registry
    registry.close()


@pytest.fixture
def served(registry: ModelRegistry) -> ServedModel:
    [model] = registry.served()
    return model
