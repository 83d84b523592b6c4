"""Whose name it is under /v2: a task's, or a model's that is called as one."""

from dataclasses import replace
from typing import Any, cast

import pytest

from paddlepool.contracts.tensors import STRINGS, TaskTensors, TensorSpec
from tests.service.api.fakes import (
    Client,
    FakeModel,
    FakeRegistry,
    RecordingExecutor,
    make_app,
    make_services,
)
from tests.service.api.v2.test_infer import binary

ECHO = TaskTensors(
    inputs=(TensorSpec("text", STRINGS, (-1,)),),
    outputs=(TensorSpec("length", "int32", (-1,)),),
    parameters=(),
    read=lambda inputs, _: inputs["text"],
    write=lambda value: {"length": value},
    max_bytes=100,
)


def client(*models: FakeModel, **changes: Any) -> Client:
    """A client of a server with these models and the task `echo`, changed so."""
    services = make_services(registry=FakeRegistry(models=[*models]))
    tasks = {"echo": replace(ECHO, **changes)}
    return Client(make_app(services=replace(services, task_tensors=tasks)))


def test_a_model_of_the_repository_keeps_its_name() -> None:
    """What answered under a name before there were tasks here goes on."""
    server = client(FakeModel(name="echo"), FakeModel())
    assert server.get("/v2/models/echo").json()["platform"] == "paddle_inference"
    assert server.get("/v2/models/echo").json()["inputs"][0]["name"] == "x"


@pytest.mark.parametrize(
    ("models", "status"),
    [((), 404), ((FakeModel(is_ready=False),), 503)],
    ids=["none", "not ready"],
)
def test_a_task_is_as_ready_as_its_model(models: tuple[Any, ...], status: int) -> None:
    assert client(*models).get("/v2/models/echo/ready").status_code == status
    assert client(FakeModel()).get("/v2/models/echo/ready").status_code == 200


def test_many_strings_are_read_beside_the_event_loop() -> None:
    """Each is looked at, unlike the raw tensors of a model: the whole body counts."""
    server = client(FakeModel(), max_bytes=10**6)
    operations = cast(RecordingExecutor, server.services.operations)
    for count, apart in ((10, 0), (100_000, 1)):
        raw = bytes(4 * count)
        entry = {"name": "text", "datatype": "BYTES", "shape": [count]}
        header = {"inputs": [entry | {"parameters": {"binary_data_size": len(raw)}}]}
        server.post("/v2/models/echo/infer", **binary(header, raw))
        assert operations.runs == apart


def test_a_model_parameter_that_is_no_name_is_refused() -> None:
    server = client(FakeModel())
    texts = [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a"]}]
    reply = server.post("/v2/models/echo/infer", json={"inputs": texts, "parameters": {"model": 5}})
    assert reply.status_code == 400
    assert reply.json() == {"error": "parameter model must be the name of a model"}


def test_the_limit_is_that_of_the_tasks_endpoint() -> None:
    reply = client(FakeModel()).post("/v2/models/echo/infer", content=bytes(101))
    assert (reply.status_code, "limit for 'echo' is 100" in reply.text) == (413, True)
