"""All compatible APIs, over a fake."""

import pytest

from tests.compat.fakes import FakeServer, shared_server


@pytest.fixture
def server() -> FakeServer:
    return shared_server()
