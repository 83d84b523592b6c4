"""New versions over HTTP: shown, promoted, rejected and rolled back with the admin key."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from pydantic import BaseModel

from paddlepool.settings.server import Settings
from tests.engine.fakes import doubled
from tests.evidence.canary.conftest import POLICY, Bench, WholeBench
from tests.evidence.live.fakes import nudged
from tests.service.api.fakes import Client, make_app, make_services

MODEL = "/v2/repository/models/double"


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path)
    bench.write(1, 2)
    await bench.start()
    await bench.step()
    yield bench
    await bench.stop()


@pytest.fixture
async def client(bench: Bench) -> AsyncIterator[httpx.AsyncClient]:
    settings = Settings(admin_key="admin")  # type: ignore[arg-type]
    services = replace(make_services(settings, bench.registry), canaries=bench.control)
    async with Client(make_app(services=services)).session() as client:
        client.headers["X-Api-Key"] = "admin"
        yield client


async def state(client: httpx.AsyncClient) -> tuple[Any, ...]:
    reply = await client.get(f"{MODEL}/canary")
    document = reply.json()
    return document["serving"], document["version"], document["state"]


async def test_a_person_decides_over_http(client: httpx.AsyncClient, bench: Bench) -> None:
    assert await state(client) == (1, 2, "testing")
    for action, expected in (
        ("reject", (1, 2, "rejected")),
        ("promote", (2, 2, "promoted")),
        ("rollback", (1, 2, "rejected")),
    ):
        reply = await client.post(f"{MODEL}/{action}")
        assert reply.status_code == 200
        assert reply.json()["state"] == expected[2]
        assert await state(client) == expected
        assert bench.served() == [expected[0]]


async def test_the_id_of_a_request_decides_who_answers(
    client: httpx.AsyncClient, bench: Bench
) -> None:
    [canary] = bench.registry.canaries.all()
    await bench.registry.open_beside(canary, 0.5)
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1.0]}
    answers = set()
    for number in range(24):
        reply = await client.post(
            "/v2/models/double/infer",
            json={"inputs": [tensor]},
            headers={"X-Request-ID": f"request-{number % 12}"},
        )
        assert reply.status_code == 200
        answers.add((number % 12, reply.json()["model_version"]))
    assert len(answers) == 12
    assert {version for _, version in answers} == {"1", "2"}


async def test_the_requests_that_differ_most_are_for_a_person(
    client: httpx.AsyncClient, bench: Bench
) -> None:
    """Only if the policy says so; those that agree are not kept."""
    bench.beside.of(2).behaviour = lambda inputs: (
        nudged(inputs) if inputs["x"][0, 0] > 3 else doubled(inputs)
    )
    await bench.request(4.0)
    assert (await client.get(f"{MODEL}/canary/examples")).json() == []
    config = bench.root / "models" / "double" / "config.toml"
    config.write_text(config.read_text("utf-8") + "keep_examples = 4\n", "utf-8")
    await bench.registry.load("double")
    await bench.step()
    for value in (1.0, 5.0, 6.0, 7.0):
        await bench.request(value)
    examples = (await client.get(f"{MODEL}/canary/examples")).json()
    assert len(examples) == 3
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [5.0]}
    assert examples[0]["inputs"] == [tensor]
    assert examples[0]["outputs"][0]["data"] == [10.25]
    assert examples[0]["current_outputs"][0]["data"] == [10.0]
    assert examples[0]["agreement"] == 0
    bench.beside.of(2).behaviour = lambda inputs: {"y": np.full_like(inputs["x"], np.inf)}
    await bench.request(1.0)
    examples = (await client.get(f"{MODEL}/canary/examples")).json()
    assert [row["outputs"][0]["data"] for row in examples].count([None]) == 1


async def test_what_the_state_does_not_allow_is_409(client: httpx.AsyncClient) -> None:
    reply = await client.post(f"{MODEL}/rollback")
    assert (reply.status_code, reply.json()) == (
        409,
        {"error": "no version of double was replaced by a promotion"},
    )


async def test_an_unknown_model_is_404(client: httpx.AsyncClient) -> None:
    path = "/v2/repository/models/nobody"
    assert (await client.get(f"{path}/canary")).status_code == 404
    for action in ("promote", "reject", "rollback"):
        assert (await client.post(f"{path}/{action}")).status_code == 404


async def test_the_admin_key_is_needed(client: httpx.AsyncClient) -> None:
    del client.headers["X-Api-Key"]
    assert (await client.get(f"{MODEL}/canary")).status_code == 401
    assert (await client.post(f"{MODEL}/promote")).status_code == 401


async def test_a_composed_model_shows_whole_requests(tmp_path: Path) -> None:
    """Their payload may have bytes of any kind."""

    class Request(BaseModel):
        numbers: list[float]
        picture: bytes = b"\xff"

        def __iter__(self) -> Any:
            return iter(self.numbers)

    bench = WholeBench(tmp_path)
    bench.write(1, 2, policy=POLICY + "keep_examples = 4\n")
    await bench.start()
    await bench.step()
    bench.beside.of(2, "two").behaviour = nudged
    [chain] = bench.registry.composed()
    bench.judge.offer(chain, Request(numbers=[3.0]))
    await bench.step()
    settings = Settings(admin_key="admin")  # type: ignore[arg-type]
    services = replace(make_services(settings, bench.registry), canaries=bench.control)
    async with Client(make_app(services=services)).session() as client:
        client.headers["X-Api-Key"] = "admin"
        path = "/v2/repository/models/chain/canary"
        assert (await client.get(path)).json()["parts"] == {"one": 1, "two": 2}
        [example] = (await client.get(f"{path}/examples")).json()
        models = (await client.get("/compare/data")).json()["models"]
    assert example["request"] == {"numbers": [3.0], "picture": "_w=="}
    assert (example["answer"], example["current_answer"]) == (12.25, 12.0)
    assert example["inputs"] == []
    [shown] = [model for model in models if model["name"] == "chain"]
    assert shown["canary"]["current_parts"] == {"one": 1, "two": 1}
    await bench.stop()
