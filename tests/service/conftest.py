"""The registry on a loop in a thread, for tests that are plain functions."""

import pytest

from tests.engine.driving import driven_registry

registry = pytest.fixture(driven_registry, name="registry")
