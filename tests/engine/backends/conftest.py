"""Fixtures for tests that start real predictor processes."""

import os
from collections.abc import Callable

import pytest

from tests.e2e.process import children_of


@pytest.fixture
def predictors() -> Callable[[], set[int]]:
    """Tells the processes that were started since the test began."""
    others = children_of(os.getpid())
    return lambda: children_of(os.getpid()) - others
