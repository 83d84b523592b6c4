"""A server whose models come from an S3 server on this machine, and what happens to both."""

import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import s3fs

from tests.e2e.process import ROOT, Server, running, wait_until
from tests.e2e.test_live import infer
from tests.model_files import write_manifest

pytestmark = [pytest.mark.e2e, pytest.mark.paddle, pytest.mark.nightly]
MOTO = ROOT / ".venv-deploy" / "bin" / "moto_server"


class Store:
    """An S3 server with one bucket `models`; `stop()` and `start()` keep the port, not the data."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(
            [MOTO, "-H", "127.0.0.1", "-p", str(self.port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_until(self._answers, patience=60)
        self._files().mkdir("models")

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def upload(self, model: Path) -> None:
        for path in sorted(model.rglob("*")):
            if path.is_file():
                key = f"repository/{path.relative_to(model.parent)}"
                self._files().pipe_file(f"models/{key}", path.read_bytes())

    def _files(self) -> Any:
        return s3fs.S3FileSystem(
            key="test", secret="test", endpoint_url=self.url, skip_instance_cache=True
        )

    def _answers(self) -> bool:
        try:
            return httpx.get(self.url, trust_env=False).status_code < 500
        except httpx.TransportError:
            return False


@pytest.fixture
def store() -> Iterator[Store]:
    if not MOTO.exists():
        pytest.skip("SKIPPED MODEL SOURCE TEST: `make .venv-deploy/.installed` makes its S3 server")
    store = Store()
    yield store
    store.stop()


@pytest.fixture
def origin(tiny_model_repository: Path, tmp_path: Path) -> Path:
    """The model `tiny` with version 1, to be changed and uploaded."""
    model = tmp_path / "origin" / "tiny"
    shutil.copytree(tiny_model_repository / "tiny", model)
    return model


def version_served(server: Server) -> str:
    with server.client() as client:
        reply = infer(client).raise_for_status()
    return str(reply.json()["model_version"])


def test_a_server_follows_its_source(
    store: Store, origin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (
        ("AWS_ACCESS_KEY_ID", "test"),
        ("AWS_SECRET_ACCESS_KEY", "test"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
        ("AWS_ENDPOINT_URL", store.url),
    ):
        monkeypatch.setenv(name, value)
    store.upload(origin)
    settings = {"model_source": "s3://models/repository", "repository_poll_seconds": 0.5}
    local = tmp_path / "local"
    with running(local, tmp_path, settings=settings) as server:
        assert version_served(server) == "1"

        shutil.copytree(origin / "1", origin / "2")
        store.upload(origin)
        wait_until(lambda: version_served(server) == "2")

        damaged = shutil.copytree(origin / "1", origin / "3")
        (damaged / "inference.pdiparams").write_bytes(b"\0" * 64)
        write_manifest(damaged)
        (damaged / "inference.pdiparams").write_bytes(b"\1" * 64)  # only reading it shows that
        store.upload(origin)
        wait_until(lambda: "refused tiny/3" in server.text())
        assert version_served(server) == "2"

        store.stop()
        wait_until(lambda: "the local copy stays in service" in server.text())
        assert version_served(server) == "2"

        store.start()
        shutil.rmtree(damaged)
        shutil.copytree(origin / "1", origin / "4")
        store.upload(origin)
        wait_until(lambda: version_served(server) == "4")
        assert not (local / "tiny" / "3").exists()
    with running(local, tmp_path, settings=settings | {"repository_poll_seconds": 0}) as again:
        assert version_served(again) == "4"
