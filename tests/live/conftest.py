"""A registry with model `double` on fake predictors, and the parts of the live comparison."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.engine.model import ServedModel
from app.engine.pause import Pause
from app.engine.registry import ModelRegistry
from app.live.quiet import Quiet
from app.live.spare import Spares
from tests.engine.fakes import FakeFactory, open_registry, write_double


@pytest.fixture
def pause() -> Pause:
    return Pause()


@pytest.fixture
def quiet(pause: Pause) -> Iterator[Quiet]:
    quiet = Quiet(pause)
    yield quiet
    quiet.close()


@pytest.fixture
def beside() -> FakeFactory:
    """What opens the predictors beside the service."""
    return FakeFactory()


@pytest.fixture
def spares(beside: FakeFactory, pause: Pause, quiet: Quiet) -> Spares:
    return Spares(open_predictor=beside, pause=pause, quiet=quiet)


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
