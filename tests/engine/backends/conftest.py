"""Fixtures for tests that start real predictor processes."""

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest


def _children() -> set[int]:
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that thread has ended
            found.update(int(pid) for pid in (task / "children").read_text("ascii").split())
    return found


@pytest.fixture
def predictors() -> Callable[[], set[int]]:
    """Tells the processes that were started since the test began."""
    others = _children()
    return lambda: _children() - others
