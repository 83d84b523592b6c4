"""All doors, over a fake."""

import pytest

from tests.doors.fakes import Doors, shared_doors


@pytest.fixture
def doors() -> Doors:
    return shared_doors()
