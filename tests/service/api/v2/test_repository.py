"""Model control over HTTP: index, load and unload behind the admin key."""

import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from paddlepool.settings.server import Settings
from tests.engine.driving import Driven, Loop
from tests.engine.fakes import PATIENCE, FakeFactory, Gate
from tests.engine.permissions import mode
from tests.model_files import add_to_config, write_version
from tests.service.api.fakes import Client, make_app

KEY = {"X-Api-Key": "admin"}
INDEX = "/v2/repository/index"
LOAD = "/v2/repository/models/double/load"
UNLOAD = "/v2/repository/models/double/unload"


@pytest.fixture
def client(loop: Loop, registry: Driven) -> Client:
    settings = Settings(admin_key="admin")  # type: ignore[arg-type]
    return Client(make_app(settings=settings, registry=registry), loop=loop)


def post(client: Client, path: str, document: Any = None) -> httpx.Response:
    options = {} if document is None else {"json": document}
    return client.post(path, headers=KEY, **options)


def index(client: Client, document: Any = None) -> list[tuple[str, str]]:
    return [(each["version"], each["state"]) for each in post(client, INDEX, document).json()]


@pytest.mark.parametrize("path", [INDEX, LOAD, UNLOAD])
def test_control_is_off_without_an_admin_key(registry: Driven, path: str) -> None:
    """403 whatever key is sent; with one, 401 until it is the right one."""
    off = Client(make_app(registry=registry))
    assert off.post(path, headers=KEY).status_code == 403
    settings = Settings(admin_key="other", api_keys=("admin",))  # type: ignore[arg-type]
    on = Client(make_app(settings=settings, registry=registry))
    assert on.post(path).status_code == 401
    assert on.post(path, headers=KEY).status_code == 401


@pytest.mark.parametrize("model", ["nobody", "..", "a%2Fb", "DOUBLE"])
def test_an_unknown_model_is_404(client: Client, model: str) -> None:
    """Names are compared with what is in the repository."""
    for action in ("load", "unload"):
        path = f"/v2/repository/models/{model}/{action}"
        assert post(client, path, {"parameters": None}).status_code == 404


@pytest.mark.parametrize(
    ("path", "content"),
    [
        (INDEX, b"{"),
        (INDEX, b"[]"),
        (INDEX, b'{"state": true}'),
        (LOAD, b'{"parameters": {"config": "{}"}}'),
        (LOAD, b'{"parameters": {"file:1/model": "AAAA"}}'),
        (LOAD, b'{"version": 1}'),
        (UNLOAD, b'{"parameters": {"unload_dependents": "no"}}'),
        (UNLOAD, b"\xff"),
    ],
)
def test_a_request_that_is_not_understood_is_422(
    client: Client, registry: Driven, path: str, content: bytes
) -> None:
    """Nothing is loaded or unloaded by it: files and configuration come from the repository."""
    response = client.post(path, headers=KEY, content=content)
    assert response.status_code == 422
    assert set(response.json()) == {"error"}
    assert registry.ready("double")


def test_a_warmup_beyond_the_limit_is_409(tmp_path: Path, registry: Driven, client: Client) -> None:
    add_to_config(tmp_path / "double", "[[warmup]]\nshapes = { x = [1000000, 1000000] }\n")
    response = post(client, LOAD)
    assert response.status_code == 409
    assert f"have {4 * 10**12} bytes, the limit is {64 << 20}" in response.json()["error"]
    assert registry.ready("double")


def test_a_model_that_the_system_withholds_is_409(
    tmp_path: Path, loop: Loop, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """The path is in the log alone."""
    with loop(mode, tmp_path / "double" / "1" / "manifest.json", 0):
        reply = post(client, LOAD)
    assert reply.status_code == 409
    assert reply.json() == {"error": "double: Permission denied: see the log"}
    assert "manifest.json" in caplog.text


def test_a_load_holds_up_nobody(
    tmp_path: Path, registry: Driven, factory: FakeFactory, client: Client
) -> None:
    write_version(tmp_path / "double" / "2")
    factory.selftest = gate = Gate()
    loading = threading.Thread(target=post, args=(client, LOAD))
    loading.start()
    gate.wait_entered()
    assert index(client) == [("2", "LOADING"), ("1", "READY")]
    assert client.get("/v2/models/double").status_code == 200
    gate.open()
    loading.join(PATIENCE)
    assert index(client, {"ready": None}) == [("2", "READY"), ("1", "UNAVAILABLE")]
