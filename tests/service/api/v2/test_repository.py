"""Model control over HTTP: index, load and unload behind the admin key."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from paddlepool.engine.registry.registry import ModelRegistry
from paddlepool.service.api.info import read_gauges
from paddlepool.settings.server import Settings
from tests.engine.fakes import FakeFactory, Gate, write_double
from tests.engine.permissions import mode
from tests.model_files import add_to_config, write_version
from tests.service.api.fakes import Client, make_app

KEY = {"X-Api-Key": "admin"}
INDEX = "/v2/repository/index"
LOAD = "/v2/repository/models/double/load"
UNLOAD = "/v2/repository/models/double/unload"


@pytest.fixture
async def client(registry: ModelRegistry) -> AsyncIterator[httpx.AsyncClient]:
    settings = Settings(admin_key="admin")  # type: ignore[arg-type]
    async with Client(make_app(settings=settings, registry=registry)).session() as client:
        yield client


async def post(client: httpx.AsyncClient, path: str, document: Any = None) -> httpx.Response:
    options = {} if document is None else {"json": document}
    return await client.post(path, headers=KEY, **options)


async def index(client: httpx.AsyncClient, document: Any = None) -> list[tuple[str, str]]:
    models = (await post(client, INDEX, document)).json()
    return [(model["version"], model["state"]) for model in models]


@pytest.mark.parametrize("path", [INDEX, LOAD, UNLOAD])
async def test_control_is_off_without_an_admin_key(registry: ModelRegistry, path: str) -> None:
    off = Client(make_app(registry=registry)).session()
    assert (await off.post(path, headers=KEY)).status_code == 403
    settings = Settings(admin_key="other", api_keys=("admin",))  # type: ignore[arg-type]
    on = Client(make_app(settings=settings, registry=registry)).session()
    assert (await on.post(path)).status_code == 401
    assert (await on.post(path, headers=KEY)).status_code == 401


@pytest.mark.parametrize("model", ["nobody", "..", "a%2Fb", "DOUBLE"])
async def test_an_unknown_model_is_404(client: httpx.AsyncClient, model: str) -> None:
    """Names are compared with what is in the repository."""
    for action in ("load", "unload"):
        path = f"/v2/repository/models/{model}/{action}"
        assert (await post(client, path, {"parameters": None})).status_code == 404


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
async def test_a_request_that_is_not_understood_is_422(
    client: httpx.AsyncClient, registry: ModelRegistry, path: str, content: bytes
) -> None:
    """Nothing is loaded or unloaded by it: files and configuration come from the repository."""
    response = await client.post(path, headers=KEY, content=content)
    assert response.status_code == 422
    assert set(response.json()) == {"error"}
    assert registry.ready("double")


async def test_a_warmup_beyond_the_limit_is_409(
    tmp_path: Path, registry: ModelRegistry, client: httpx.AsyncClient
) -> None:
    add_to_config(tmp_path / "double", "[[warmup]]\nshapes = { x = [1000000, 1000000] }\n")
    response = await post(client, LOAD)
    assert response.status_code == 409
    assert f"have {4 * 10**12} bytes, the limit is {64 << 20}" in response.json()["error"]
    assert registry.ready("double")


async def test_a_model_that_the_system_withholds_is_409(
    tmp_path: Path, client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    """The path is in the log alone."""
    with mode(tmp_path / "double" / "1" / "manifest.json", 0):
        reply = await post(client, LOAD)
    assert reply.status_code == 409
    assert reply.json() == {"error": "double: Permission denied: see the log"}
    assert "manifest.json" in caplog.text


async def test_a_broken_new_model_has_a_metric_but_does_not_make_the_server_unready(
    tmp_path: Path, registry: ModelRegistry, client: httpx.AsyncClient
) -> None:
    """Otherwise no alert would tell that it cannot be loaded. `unload` ends the metric."""
    (write_double(tmp_path, 2, name="new") / "2" / "manifest.json").write_text("{", "utf-8")

    def gauges() -> list[tuple[str, int, bool]]:
        return [(gauge.model, gauge.version, gauge.ready) for gauge in read_gauges(registry)]

    assert gauges() == [("double", 1, True)]
    assert (await post(client, LOAD.replace("double", "new"))).status_code == 409
    assert gauges() == [("double", 1, True), ("new", 2, False)]
    assert (await client.get("/v2/health/ready")).status_code == 200
    assert (await client.get("/v2/models/new/ready")).status_code == 503
    assert (await post(client, UNLOAD.replace("double", "new"))).status_code == 200
    assert gauges() == [("double", 1, True)]


async def test_a_load_holds_up_nobody(
    tmp_path: Path, registry: ModelRegistry, factory: FakeFactory, client: httpx.AsyncClient
) -> None:
    write_version(tmp_path / "double" / "2")
    factory.selftest = gate = Gate()
    loading = asyncio.create_task(post(client, LOAD))
    await gate.entered()
    assert await index(client) == [("2", "LOADING"), ("1", "READY")]
    assert (await client.get("/v2/models/double")).status_code == 200
    gate.open()
    await loading
    assert await index(client, {"ready": None}) == [("2", "READY"), ("1", "UNAVAILABLE")]
    assert await index(client, {"ready": True}) == [("2", "READY")]
