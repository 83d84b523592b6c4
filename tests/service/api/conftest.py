"""A client of the application over fakes."""

import pytest

from tests.service.api.fakes import Client, make_app


@pytest.fixture
def client() -> Client:
    return Client(make_app())
