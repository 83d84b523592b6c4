"""POST /v2/models/{model}/infer over HTTP: what is answered, and what is refused before it runs."""

import json
import math
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from paddlepool.contracts.errors import RunRefused
from paddlepool.engine.registry.registry import ModelRegistry
from paddlepool.settings.server import Settings
from tests.engine.fakes import FakeFactory, calling, failing, write_double
from tests.model_files import add_to_config
from tests.service.api.fakes import Client, RecordingExecutor, make_app

INFER = "/v2/models/double/infer"
HEADER = "Inference-Header-Content-Length"


def document(**changes: Any) -> dict[str, Any]:
    entry = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 2.5]} | changes
    return {"inputs": [{name: value for name, value in entry.items() if value is not None}]}


def binary(header: Any, raw: bytes) -> dict[str, Any]:
    """Options of a request whose tensors follow the JSON."""
    text = json.dumps(header).encode()
    headers = {HEADER: str(len(text)), "Content-Type": "application/octet-stream"}
    return {"content": text + raw, "headers": headers}


def refused(response: httpx.Response, status: int = 400) -> str:
    """The protocol's one shape of an error; returns its message."""
    assert response.status_code == status, response.text[:300]
    assert response.headers["content-type"] == "application/json"
    assert set(response.json()) == {"error"}
    return str(response.json()["error"])


async def test_what_the_framework_refuses_is_the_clients_to_mend(
    client: httpx.AsyncClient, factory: FakeFactory
) -> None:
    """Shapes that do not fit, an index out of range: 400 with the framework's words, not 500."""
    factory.behaviour = failing(lambda: RunRefused("it cannot be run", library_text="3 is not 4"))
    message = refused(await client.post(INFER, json=document()))
    assert "x [1, 2]" in message
    assert message.endswith("The framework says: 3 is not 4")


async def test_each_served_version_answers_by_its_number(
    client: httpx.AsyncClient, registry: ModelRegistry, tmp_path: Path
) -> None:
    add_to_config(write_double(tmp_path, 2), '[version_policy]\nkind = "all"\n')
    await registry.load("double")
    for version in (1, 2):
        path = f"/v2/models/double/versions/{version}"
        response = await client.post(f"{path}/infer", json=document())
        assert response.json()["model_version"] == str(version)
        assert (await client.get(f"{path}/ready")).status_code == 200
    assert (await client.get("/v2/models/double")).json()["versions"] == ["1", "2"]
    for other in ("3", "+1", "01", "1_0", "%201", "1.0", "-1", "0", "٣", "one"):
        path = f"/v2/models/double/versions/{other}"
        refused(await client.post(f"{path}/infer", json=document()), 404)
        refused(await client.get(path), 404)
    refused(await client.post("/v2/models/other/infer", json=document()), 404)


def raw_request(columns: int, *, raw_reply: bool, **parameters: Any) -> dict[str, Any]:
    """One row of halves as raw bytes."""
    header = document(
        shape=[1, columns], data=None, parameters={"binary_data_size": 4 * columns}
    ) | {"parameters": {"binary_data_output": raw_reply} | parameters}
    return binary(header, np.full(columns, 0.5, "<f4").tobytes())


def written(columns: int) -> dict[str, Any]:
    """One row of halves in JSON, for a raw reply."""
    outputs = {"outputs": [{"name": "y", "parameters": {"binary_data": True}}]}
    return {"json": document(shape=[1, columns], data=[0.5] * columns) | outputs}


@pytest.mark.parametrize(
    ("request_", "apart"),
    [
        pytest.param(written(1_000), 0, id="little JSON"),
        pytest.param(written(100_000), 1, id="JSON to be read"),
        pytest.param(raw_request(1_000, raw_reply=False), 0, id="a short reply"),
        pytest.param(raw_request(100_000, raw_reply=False), 1, id="JSON to be written"),
        pytest.param(raw_request(1 << 20, raw_reply=True), 0, id="raw both ways"),
        pytest.param(raw_request((1 << 20) + 1, raw_reply=True), 1, id="to be looked through"),
    ],
)
async def test_what_takes_long_is_done_beside_the_event_loop(
    client: httpx.AsyncClient, operations: RecordingExecutor, request_: dict[str, Any], apart: int
) -> None:
    """It would keep every other request waiting."""
    reply = await client.post(INFER, **request_)
    assert (reply.status_code, operations.runs) == (200, apart)
    if reply.headers["content-type"] == "application/json":
        assert set(reply.json()["outputs"][0]["data"]) == {1.0}
    assert operations.threads.isdisjoint({threading.get_ident()})


async def test_refusals_from_beside_the_event_loop_are_the_same(
    client: httpx.AsyncClient, operations: RecordingExecutor
) -> None:
    refused(await client.post(INFER, json=document(shape=[1, 7], data=[0.5] * 100_000)))
    request = raw_request((1 << 20) + 1, raw_reply=True)
    request["content"] = request["content"][:-4] + np.full(1, np.nan, "<f4").tobytes()
    assert "NaN" in refused(await client.post(INFER, **request))
    assert operations.runs == 2


async def test_without_a_place_a_large_body_is_not_read(
    registry: ModelRegistry, client: httpx.AsyncClient, operations: RecordingExecutor
) -> None:
    """503 for what would be 400 if anybody looked; the places are those of its own group."""
    junk = b"[" * 300_000
    with ExitStack() as places, registry.lease("double") as served:
        # This client's own: whoever has none would still find one.
        places.enter_context(calling("127.0.0.1"))
        for _ in range(16):
            places.enter_context(served.reserve(deadline=math.inf))
        response = await client.post(INFER, content=junk)
        assert "the queue is full: 16 jobs wait, limit 16" in refused(response, 503)
        assert int(response.headers["retry-after"]) >= 1
        assert operations.runs == 0
        refused(await client.post(INFER, **raw_request(100_000, raw_reply=True)), 503)
        elsewhere = raw_request(100_000, raw_reply=True, instance_group="spare")
        headers = (await client.post(INFER, **elsewhere)).headers
        assert headers["x-instance-group"] == headers["x-predictor"] == "spare"
    refused(await client.post(INFER, content=junk))


async def test_a_word_in_a_large_body_is_no_parameter(
    client: httpx.AsyncClient, factory: FakeFactory
) -> None:
    """What small bodies are answered for, large ones are, too; and junk starts no group."""
    opened = len(factory.opened)
    large = document(shape=[4, 100_000], data=[0.5] * 400_000)
    for noted in ({"predictor": "nobody"}, {"predictor": "spare", "timeout": 1}):
        body = large | {"note": noted}
        assert (await client.post(INFER, json=body)).headers["x-predictor"] == "main"
    refused(await client.post(INFER, content=b'[{"predictor":"spare"}' + b"[" * 300_000))
    assert len(factory.opened) == opened


async def test_an_unfit_request_is_400_and_never_reaches_a_predictor(
    client: httpx.AsyncClient, registry: ModelRegistry
) -> None:
    [served] = registry.served()
    before = served.statistics().executions
    late = document() | {"parameters": {"timeout": 10**12}}
    for unfit in (document(name="y"), document(data=[1e39, 1.0]), late):
        assert refused(await client.post(INFER, json=unfit))
    assert served.statistics().executions == before
    assert (await client.post(INFER, json=document())).status_code == 200


async def test_the_json_part_has_a_cap_of_its_own(registry: ModelRegistry) -> None:
    """Parsing holds the event loop, so JSON is capped below what raw tensors may take."""
    settings = Settings(infer_json_max_bytes=100, infer_max_bytes=1000)
    client = Client(make_app(settings=settings, registry=registry)).session()
    padded = json.dumps(document()) + " " * 100
    message = refused(await client.post(INFER, content=padded), 413)
    assert "limit is 100" in message
    assert HEADER in message
    raw = np.ones((4, 50), "<f4").tobytes()
    header = document(shape=[4, 50], data=None, parameters={"binary_data_size": 800})
    assert refused(await client.post(INFER, **binary(header, raw)), 413)
    small = document(shape=[4, 50], data=[1])
    assert "1000" in refused(await client.post(INFER, **binary(small, bytes(1000))), 413)


async def test_statistics_count_rows_runs_and_failures(client: httpx.AsyncClient) -> None:
    """In Triton's form: what perf_analyzer subtracts before and after."""
    for rows in (1, 3, 3):
        await client.post(INFER, json=document(shape=[rows, 1], data=[1.0] * rows))
    refused(await client.post(INFER, json=document(name="y")))
    one = (await client.get("/v2/models/double/stats")).json()
    assert one == (await client.get("/v2/models/double/versions/1/stats")).json()
    assert one == (await client.get("/v2/models/stats")).json()
    [counted] = one["model_stats"]
    assert (counted["name"], counted["version"]) == ("double", "1")
    assert (counted["inference_count"], counted["execution_count"]) == (7, 3)
    counts = {name: entry["count"] for name, entry in counted["inference_stats"].items()}
    assert counts == {
        "success": 3,
        "fail": 0,
        "queue": 3,
        "compute_input": 3,
        "compute_infer": 3,
        "compute_output": 3,
    }
    parts = counted["inference_stats"]
    assert parts["success"]["ns"] >= parts["compute_infer"]["ns"] > 0
    sizes = {
        entry["batch_size"]: entry["compute_infer"]["count"] for entry in counted["batch_stats"]
    }
    assert sizes == {1: 1, 3: 2}
    assert counted["last_inference"] > 1_600_000_000_000
