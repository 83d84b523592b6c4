"""Servers as processes of their own, shared by the tests of a session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.process import Server, running


@pytest.fixture(scope="session")
def server(
    tiny_model_repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server with the model `tiny` loaded. Shared: leave it as it was."""
    with running(tiny_model_repository, tmp_path_factory.mktemp("server")) as server:
        server.wait_loaded()
        yield server


SHORT = {
    "header_timeout_seconds": 2,
    "receive_timeout_seconds": 3,
    "keep_alive_seconds": 2,
    "send_stall_seconds": 2,
}
"""Long enough that a busy machine does not make a prompt client look slow."""


@pytest.fixture(scope="session")
def strict_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server without models, with short deadlines and the task of `slow_task`."""
    directory = tmp_path_factory.mktemp("strict_server")
    (directory / "models").mkdir()
    with running(
        directory / "models", directory, settings=SHORT, module="tests.e2e.slow_server"
    ) as server:
        server.wait_loaded()
        yield server
