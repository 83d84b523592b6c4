"""All doors, over a fake."""

from __future__ import annotations

import pytest

from tests.doors.fakes import Doors


@pytest.fixture
def doors() -> Doors:
    return Doors()
