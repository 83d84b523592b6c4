"""A client of the application over a registry of fake predictors."""

from collections.abc import AsyncIterator

import httpx
import pytest

from paddlepool.engine.registry.registry import ModelRegistry
from tests.service.api.fakes import Client, RecordingExecutor, make_app, make_services


@pytest.fixture
def operations() -> RecordingExecutor:
    """The thread of the application's work beside the event loop."""
    return RecordingExecutor()


@pytest.fixture
async def client(
    registry: ModelRegistry, operations: RecordingExecutor
) -> AsyncIterator[httpx.AsyncClient]:
    app = make_app(services=make_services(registry=registry, operations=operations))
    async with Client(app).session() as client:
        yield client
