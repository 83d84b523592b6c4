"""Servers as processes of their own, shared by the tests of a session."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.process import ROOT, Server, running, slow_server

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="session")
def server(
    tiny_model_repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server with the model `tiny` loaded. Shared: leave it as it was."""
    with running(tiny_model_repository, tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture
def repository(tiny_model_repository: Path, tmp_path: Path) -> Path:
    """A test's own repository with the model `tiny`."""
    return shutil.copytree(tiny_model_repository, tmp_path / "models")


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
    with slow_server(directory, **SHORT) as server:
        yield server


PATIENT = {"codec_timeout_seconds": 60, "timeout_default_ms": 30_000}
"""Codecs and requests may take long: the machine may be busy."""


@pytest.fixture(scope="session")
def full_server(
    tiny_model_repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server with every model of the repository, `tiny`, gRPC and an admin key. Shared: leave it
    as it was, but for groups that are started on demand."""
    root = tmp_path_factory.mktemp("full_server")
    shutil.copytree(ROOT / "model_repo", root / "repository")
    shutil.copytree(tiny_model_repository / "tiny", root / "repository" / "tiny")
    settings = PATIENT | {"admin_key": "admin", "grpc_port": 0}
    with running(root / "repository", root, settings=settings) as server:
        yield server


KEY, FOREIGN_KEY = "one-of-the-keys", "schlüssel-钥匙"


@pytest.fixture(scope="session")
def keyed_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with every model of the repository, for callers with a key. Leave it as it was,
    but for the group `native` of emotion."""
    directory = tmp_path_factory.mktemp("keyed_server")
    settings = PATIENT | {"api_keys": f"{KEY},{FOREIGN_KEY}"}
    with running(ROOT / "model_repo", directory, settings=settings) as server:
        yield server


@pytest.fixture(scope="module")
def browser(request: pytest.FixtureRequest) -> Iterator[Browser]:
    """Chromium; the module's tests are skipped where there is none."""
    from tests.e2e.browser import chromium  # what other tests need not load

    with chromium(request.module.__doc__.partition(":")[0]) as browser:
        yield browser


@pytest.fixture
def complaints() -> list[str]:
    """What the browser's console and network had to say against the page."""
    return []
