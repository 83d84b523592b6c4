"""Fixtures for tests that start real predictor processes."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from paddlepool.models.repository.layout import ModelFiles, ModelRepository
from tests.e2e.process import children_of


@pytest.fixture(scope="session")
def tiny(tiny_model_repository: Path) -> ModelFiles:
    return ModelRepository(tiny_model_repository).read("tiny", 1)


@pytest.fixture
def predictors() -> Callable[[], set[int]]:
    """Tells the processes that were started since the test began."""
    others = children_of(os.getpid())
    return lambda: children_of(os.getpid()) - others
