"""The application over a registry without predictors, and a client that needs no event loop."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, cast

import httpx
from fastapi import APIRouter, FastAPI
from pydantic import BaseModel, ConfigDict, Field

from paddlepool.application import build_application
from paddlepool.compat.api import CompatibleApi
from paddlepool.contracts.errors import ModelNotFound
from paddlepool.contracts.ports import Pipeline, ServedModelInfo
from paddlepool.contracts.status import Candidate, Choice, GroupStatus, ModelStatus
from paddlepool.contracts.tensors import TensorSpec
from paddlepool.engine.dataplane import DataPlane
from paddlepool.engine.pool.group import Statistics
from paddlepool.engine.registry.promotions import Promotions
from paddlepool.engine.registry.registry import ModelRegistry
from paddlepool.engine.registry.thread_budget import ThreadBudget
from paddlepool.evidence.canary.control import CanaryControl
from paddlepool.models.repository.config import InstanceGroup, ModelConfig
from paddlepool.models.repository.manifest import FileEntry, Manifest
from paddlepool.observability.metrics import Metrics
from paddlepool.service.api.services import Lifecycle, Services
from paddlepool.settings.server import Settings
from paddlepool.tasks import PIPELINES
from paddlepool.tasks.task import Task, Workers, load_tasks, settings_class

CONFIG = ModelConfig(
    pipeline="echo",
    default_group="one",
    instance_group=(InstanceGroup(name="one", backend="fake"),),
    parameters={"labels": ["sad", "happy"], "labels_zh": ["悲伤", "快乐"]},
)
MANIFEST = Manifest(
    format=1,
    program="inference.json",
    params="inference.pdiparams",
    files={"inference.json": FileEntry(3, "a" * 64), "inference.pdiparams": FileEntry(5, "b" * 64)},
    inputs=(TensorSpec("x", "float32", (-1, 3)),),
    outputs=(TensorSpec("y", "float32", (-1, 2)),),
    network=None,
    weights={"origin": "random", "preview": True, "licence": "Apache-2.0"},
    built_with={"paddle": "3.2.2"},
)
GROUP = GroupStatus(
    name="one",
    backend="fake",
    threads=1,
    count=2,
    live=2,
    queue_depth=3,
    queue_limit=32,
    inflight=1,
    resident_bytes=1000,
    started=True,
    ready=True,
    reason="",
)
CHOICE = Choice(
    group="one",
    by="measured",
    reason="nothing is clearly faster than one",
    candidates=(Candidate(group="two", fit=False, reason="takes 2.00 times as long as one"),),
)


@dataclass
class FakeModel:
    name: str = "m1"
    version: int = 1
    config: ModelConfig = CONFIG
    manifest: Manifest = MANIFEST
    is_ready: bool = True
    statuses: tuple[GroupStatus, ...] = (GROUP,)
    choice: Choice = CHOICE
    pipeline: None = None
    batched: bool = True
    max_rows: int = 4
    counters: Statistics = field(default_factory=Statistics)

    def statistics(self) -> Statistics:
        return self.counters.snapshot()

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return self.manifest.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return self.manifest.outputs

    def groups(self) -> tuple[GroupStatus, ...]:
        return self.statuses

    def ready(self) -> bool:
        return self.is_ready


@dataclass
class FakeRegistry:
    """Serves what `models` holds; `failed` are versions that could not be loaded."""

    models: list[FakeModel] = field(default_factory=lambda: [FakeModel()])
    failed: list[ModelStatus] = field(default_factory=list)

    def served(self) -> tuple[FakeModel, ...]:
        return tuple(self.models)

    def composed(self) -> tuple[()]:
        return ()

    def find_composed(self, name: str, version: int | None) -> None:
        del name, version

    def wanted(self) -> tuple[str, ...]:
        return tuple(sorted({item.name for item in (*self.models, *self.failed)}))  # type: ignore[attr-defined]

    def expected(self) -> tuple[str, ...]:
        return self.wanted()

    def index(self) -> tuple[ModelStatus, ...]:
        ready = [
            ModelStatus(name=model.name, version=model.version, state="READY", reason="")
            for model in self.models
        ]
        return (*ready, *self.failed)

    def ready(self, name: str | None = None) -> bool:
        del name
        return not self.failed and all(model.ready() for model in self.models)

    def find(self, name: str, version: int | None) -> FakeModel | None:
        fitting = (m for m in self.models if m.name == name and version in (None, m.version))
        return next(fitting, None)

    @contextlib.contextmanager
    def lease(self, name: str, version: int | None = None) -> Iterator[FakeModel]:
        yield self.acquire(name, version)

    def acquire(self, name: str, version: int | None = None, *, spread: bool = False) -> FakeModel:
        if (model := self.find(name, version)) is None:
            raise ModelNotFound("no model of this name and version is served")
        return model

    def budget(self) -> ThreadBudget:
        return ThreadBudget(threads=2, cores=4.0)


class RecordingExecutor(ThreadPoolExecutor):
    """One thread, which is in `threads`; `runs` counts what was handed to it."""

    def __init__(self) -> None:
        self.threads: set[int] = set()
        super().__init__(1, initializer=lambda: self.threads.add(threading.get_ident()))
        self.runs = 0

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.runs += 1
        return super().submit(fn, *args, **kwargs)


class EchoRequest(BaseModel):
    """What the task of these tests takes: a text and two numbers with limits."""

    model_config = ConfigDict(extra="forbid", strict=True)
    text: str
    top_k: int = Field(default=1, ge=1, le=6)
    weight: float = Field(default=0.0, allow_inf_nan=False)


def task_of(router: APIRouter, *card: str) -> Task:
    """A task that is its endpoint alone."""

    def build(info: ServedModelInfo, workers: Workers) -> Pipeline:
        raise AssertionError("no model of this task is loaded")

    return Task(build=build, endpoints=lambda settings: router, card=card)


def echo_router() -> APIRouter:
    """Answers with the length of the text, so that no reply can repeat it."""
    router = APIRouter()

    async def echo(body: EchoRequest) -> dict[str, int]:
        return {"characters": len(body.text)}

    router.add_api_route("/sentiment", echo, methods=["POST"], max_body_size=256 * 1024)
    return router


def make_services(
    settings: Settings | None = None,
    registry: FakeRegistry | ModelRegistry | None = None,
    operations: Executor | None = None,
) -> Services:
    metrics = Metrics(build={"version": "0"})
    metrics.expect_model("m1", ["one"])
    real = cast(ModelRegistry, registry or FakeRegistry())
    return Services(
        settings=settings or Settings(),
        registry=real,
        dataplane=DataPlane(real, default_models={"echo": "m1"}, stages_done=[metrics.stages_done]),
        metrics=metrics,
        canaries=CanaryControl(real, Promotions()),
        lifecycle=Lifecycle(),
        operations=operations or RecordingExecutor(),
        confinement=lambda: {"codecs": ("no_new_privileges", "landlock"), "predictors": ()},
    )


def make_settings(**values: Any) -> Settings:
    """The product's settings: the server's, and those that its tasks declare."""
    return settings_class(load_tasks(PIPELINES).values())(**values)


@contextlib.asynccontextmanager
async def no_lifespan(app: FastAPI) -> AsyncIterator[None]:
    del app
    yield


def make_app(
    *routers: APIRouter,
    settings: Settings | None = None,
    registry: FakeRegistry | ModelRegistry | None = None,
    services: Services | None = None,
) -> FastAPI:
    services = services or make_services(settings, registry)
    return build_application(
        services,
        keys=services.settings.keys(),
        tasks=[task_of(echo_router(), "labels", "labels_zh"), *map(task_of, routers)],
        lifespan=no_lifespan,
    )


def product_client(
    settings: Settings | None = None, *, compatible_apis: Sequence[CompatibleApi] = ()
) -> "Client":
    """A client of the product's own tasks and of these compatible APIs."""
    services = make_services(settings or make_settings())
    tasks = load_tasks(PIPELINES).values()
    return Client(
        build_application(
            services, keys=(), tasks=tasks, compatible_apis=compatible_apis, lifespan=no_lifespan
        )
    )


class Client:
    """Sends requests to an application in this process."""

    def __init__(self, app: FastAPI, *, peer: str = "127.0.0.1") -> None:
        self.app = app
        self.services: Services = app.state.paddlepool
        self._peer = peer

    def session(self) -> httpx.AsyncClient:
        """For requests on the running event loop."""
        transport = httpx.ASGITransport(
            self.app, raise_app_exceptions=False, client=(self._peer, 123)
        )
        return httpx.AsyncClient(transport=transport, base_url="http://localhost")

    def send(self, method: str, path: str, **options: Any) -> httpx.Response:
        return self.send_all([(method, path, options)])[0]

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.send("GET", path, **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        return self.send("POST", path, **options)

    def send_all(
        self, requests: Sequence[tuple[str, str, Mapping[str, Any]]]
    ) -> list[httpx.Response]:
        async def run() -> list[httpx.Response]:
            async with self.session() as client:
                return [await client.request(m, path, **options) for m, path, options in requests]

        return asyncio.run(run())


def assert_problem(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The one shape of an error; returns it."""
    assert response.status_code == status, response.text[:500]
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert set(problem) >= {"type", "title", "status", "detail", "instance", "code", "request_id"}
    assert problem["status"] == status
    assert problem["code"] == code
    assert problem["request_id"] == response.headers["x-request-id"]
    assert problem["type"] == f"/docs/errors#{code}"
    return cast(dict[str, Any], problem)
