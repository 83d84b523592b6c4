"""A new task is one package and one line; a second model of a task is one directory."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from app.contracts.ports import Predictor, PredictorSpec, Ran
from app.contracts.reasons import Restart
from app.contracts.tensors import Tensors
from app.engine.registry.registry import ModelRegistry
from app.main import PipelineBuilder, create_app
from app.observability.metrics import Metrics
from app.process.suspension import Suspension
from app.repository.layout import ModelRepository
from app.settings import Settings
from app.workers import Workers
from tests.model_files import write_config, write_version

CLASSIFY = '''
"""A task nobody has heard of: which of two numbers is larger."""

import numpy as np
from fastapi import APIRouter

from app.api.replies import answer_headers
from app.api.services import ServicesDep
from app.contracts.ports import Finished, Prepared


class Larger:
    def __init__(self, info):
        self.labels = info.parameters["labels"]

    async def prepare(self, payload, *, deadline):
        job = {"x": np.array([payload], np.float32)}
        return Prepared(jobs=(job,), state=None, stages={"preprocess": 0.0})

    async def finish(self, prepared, outputs, *, deadline):
        index = int(outputs[0]["y"].argmax())
        return Finished(value=self.labels[index], stages={"postprocess": 0.0})

    def close(self):
        pass


def build(info, workers):
    return Larger(info)


async def larger(a: float, b: float, services: ServicesDep, model: str | None = None):
    answer = await services.dataplane.run("larger", [a, b], model=model, timeout=5.0)
    return {"larger": answer.value, "headers": answer_headers(answer)}


def endpoints():
    router = APIRouter()
    router.add_api_route("/larger", larger, methods=["POST"], operation_id="largerOfTwo")
    return router
'''


CONFIG = """
pipeline = "larger"
default_group = "plain"
[[instance_group]]
name = "plain"
backend = "doubler"
[parameters]
labels = ["{first}", "{second}"]
"""


class Doubler:
    """A predictor without a framework: y = 2 x."""

    def __init__(self, spec: PredictorSpec) -> None:
        self._output = spec.outputs[0].name
        self._sent: list[Tensors] = []

    def run(self, inputs: Tensors, *, timeout: float) -> Tensors:
        del timeout
        return {self._output: 2 * next(iter(inputs.values()))}  # type: ignore[operator]

    def send(self, inputs: Tensors) -> None:
        self._sent.append(inputs)

    def arrives(self, seconds: float) -> bool:
        del seconds
        return True

    def receive(self, *, timeout: float) -> Ran:
        return Ran(self.run(self._sent.pop(0), timeout=timeout), 0.001)

    def failure(self) -> Restart | None:
        return None

    def settle(self) -> None:
        pass

    def abort(self) -> None:
        pass

    def resident_bytes(self) -> int:
        return 1

    def close(self) -> None:
        pass


def open_doubler(spec: PredictorSpec, *, suspension: Suspension | None = None) -> Predictor:
    del suspension  # it does nothing that another model's users could feel
    return Doubler(spec)


def publish(repository: Path, name: str, *, first: str, second: str) -> None:
    """A model of the new task whose labels are these."""
    write_version(repository / name / "1")
    write_config(repository / name, CONFIG.format(first=first, second=second))


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The package of the new task, beside the server and not in it."""
    package = tmp_path / "packages" / "larger_of_two"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(CLASSIFY, "utf-8")
    monkeypatch.syspath_prepend(str(package.parent))
    yield "larger_of_two"
    sys.modules.pop("larger_of_two", None)


@pytest.fixture
def repository(tmp_path: Path) -> ModelRepository:
    root = tmp_path / "model_repo"
    publish(root, "alpha", first="first", second="second")
    return ModelRepository(root)


def serve(repository: ModelRepository, pipelines: Mapping[str, str]) -> Iterator[TestClient]:
    """The whole application over these models and tasks, everything real but the predictor."""
    settings = Settings(model_repository=repository.root)
    with ThreadPoolExecutor(1) as pool:
        workers = Workers(codec=None, text=pool)  # type: ignore[arg-type]
        registry = ModelRegistry(
            repository,
            open_predictor=open_doubler,
            build_pipeline=PipelineBuilder(pipelines, workers),
            observer=Metrics(build={}),
        )
        registry.load_all()
        try:
            yield TestClient(create_app(settings, registry=registry, pipelines=pipelines))
        finally:
            registry.close()


def test_a_new_task_is_its_package_and_one_line(task: str, repository: ModelRepository) -> None:
    """Endpoint, batching, metrics, /info and the error table come with the line in PIPELINES."""
    for client in serve(repository, {"larger": task}):
        reply = client.post("/larger?a=1&b=5")
        assert reply.json()["larger"] == "second", reply.text
        assert reply.json()["headers"]["X-Model"] == "alpha@1"
        assert client.get("/v2/health/ready").status_code == 200
        assert "alpha" in client.get("/info").text
        metrics = client.get("/metrics").text
        assert 'paddlepool_stage_duration_seconds_count{model="alpha",predictor="plain"' in metrics
        assert 'route="/larger"' in metrics
        assert client.get("/openapi.json").json()["paths"].keys() >= {"/larger"}
        unknown = client.post("/larger?a=1&b=5&model=nobody")
        assert (unknown.status_code, unknown.json()["code"]) == (404, "model_not_found")


def test_without_its_line_a_task_does_not_exist(repository: ModelRepository) -> None:
    """The model of an unknown task is UNAVAILABLE with the reason; nothing else breaks."""
    for client in serve(repository, {}):
        assert client.post("/larger?a=1&b=5").status_code == 404
        assert client.get("/v2/health/live").status_code == 200
        assert client.get("/v2/health/ready").status_code == 503


def test_a_second_model_of_a_task_is_one_directory(task: str, repository: ModelRepository) -> None:
    """Only model_repo/<name>/ is new; a request names it, and each keeps its own parameters."""
    publish(repository.root, "beta", first="一", second="二")
    for client in serve(repository, {"larger": task}):
        for model, expected in ((None, "first"), ("alpha", "first"), ("beta", "一")):
            query = "" if model is None else f"&model={model}"
            assert client.post(f"/larger?a=7&b=5{query}").json()["larger"] == expected
