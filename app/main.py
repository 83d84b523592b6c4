"""The composition root: builds every part once and ties their lifetimes to the application's."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from fastapi import FastAPI

from app.application import build_application, open_doors
from app.contracts.errors import ConfigError
from app.contracts.ports import Pipeline, ServedModelInfo
from app.contracts.resources import memory_limit
from app.engine.awaiting import in_thread
from app.engine.backends.process import ProcessBackend
from app.engine.dataplane import DataPlane
from app.engine.registry.model import BuildPipeline, ServedModel
from app.engine.registry.registry import ModelRegistry
from app.engine.registry.watcher import RepositoryWatcher
from app.evidence.live.background import Background, open_background
from app.evidence.live.kept_choices import open_kept_choices
from app.evidence.live.shadow import warn_of_unknown_groups
from app.models.repository.config import ModelConfig
from app.models.repository.layout import ModelRepository, find_default_models, read_configs
from app.models.sources.sync import refresh
from app.observability.build_info import build_info, machine
from app.observability.metrics import Metrics
from app.service.api.info import read_gauges
from app.service.api.middleware.limits import Gates
from app.service.api.services import Lifecycle, Services
from app.service.server.system import watch_loop
from app.settings.server import Settings
from app.tasks import PIPELINES
from app.tasks.codecs.limits import PictureLimits, formats_named
from app.tasks.codecs.picture import PictureStore
from app.tasks.codecs.pool import CodecPool, Codecs
from app.tasks.task import (
    Task,
    Workers,
    agreement_of,
    build_pipeline,
    first_route,
    load_tasks,
    task_of,
)

EXTRAS = {
    "grpc": ("grpc", "grpc_health", "grpc_reflection"),
    "otel": ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"),
}
"""Packages of each extra that the server can run without."""

ON_DEMAND_SHARE = 4
"""Groups that start on demand use about 1 / ON_DEMAND_SHARE of the memory by default."""

log = logging.getLogger("paddlepool.server")


def create_app(
    settings: Settings,
    *,
    lifecycle: Lifecycle | None = None,
    registry: ModelRegistry | None = None,
    pipelines: Mapping[str, str] = PIPELINES,
) -> FastAPI:
    """Build the application. Its lifespan starts loading, which continues after the socket opens.

    `pipelines` names the module of each task. `settings` include the settings that these tasks
    declare (app.tasks.task.settings_class).

    Raises ConfigError if the model repository or the key file cannot be read, the key file has no
    key, the settings name a task that does not exist, or the settings enable gRPC or tracing and
    the extra is not installed.
    """
    if settings.grpc_port is not None:
        require_extra("grpc", setting="PADDLEPOOL_GRPC_PORT")
    keys = settings.keys()  # a wrong key file must stop the start before any process exists
    tasks = load_tasks(pipelines)
    repository = ModelRepository(settings.model_repository)
    configs = read_configs(repository)
    default_models = find_default_models(configs, tasks, chosen=settings.default_models)
    warn_of_unknown_groups(settings.shadow_groups, configs.values())
    metrics = Metrics(build=build_info(), memory_limit=memory_limit())
    tracing = None
    if settings.tracing:
        require_extra("otel", setting="PADDLEPOOL_TRACING")
        from app.observability.tracing import open_tracing

        tracing = open_tracing()
    kept = open_kept_choices(settings.state_file, precision=settings.precision, machine=machine())
    for name, config in configs.items():
        _register_metrics(name, config, metrics)
    workers: Workers | None = None
    backend = ProcessBackend()
    if registry is None:
        workers = build_workers(settings, metrics, tasks.values())
        registry = ModelRegistry(
            repository,
            open_predictor=backend,
            build_pipeline=registering(
                partial(build_pipeline, tasks=tasks, workers=workers),
                repository,
                metrics,
                warm=partial(_warm, tasks=tasks, workers=workers),
            ),
            observer=metrics,
            drain_timeout=settings.timeout_max_ms / 1000 + 5,  # the longest request and its cleanup
            max_resident_bytes=settings.predictor_memory_bytes,
            max_on_demand=settings.on_demand_groups,
            max_on_demand_bytes=settings.on_demand_memory_bytes
            or memory_limit() // ON_DEMAND_SHARE,
            agreement_of=partial(agreement_of, tasks=tasks),
            kept_choice=kept.get,
        )
    metrics.watch(partial(read_gauges, registry))
    background = open_background(
        registry,
        backend=lambda suspension: ProcessBackend(suspension=suspension),
        observer=metrics,
        agreement_of=partial(agreement_of, tasks=tasks),
        prove=settings.prove_groups,
        fraction=settings.shadow_fraction,
        groups=settings.shadow_groups,
        max_predictors=settings.shadow_max_predictors,
        precision=settings.precision,
        keep=kept.keep,
    )
    operations = ThreadPoolExecutor(1, thread_name_prefix="operations")
    services = Services(
        settings=settings,
        registry=registry,
        dataplane=DataPlane(
            registry,
            observer=metrics if tracing is None else tracing.observing(metrics),
            default_models=default_models,
            traffic_listener=background,
        ),
        metrics=metrics,
        lifecycle=lifecycle or Lifecycle(),
        default_models=default_models,
        task_tensors={
            name: task.tensors(settings) for name, task in tasks.items() if task.tensors is not None
        },
        tracing=tracing,
        operations=operations,
        confinement=lambda: {
            "codecs": workers.codec.pool.held if workers else (),
            "predictors": backend.held or (),
        },
    )
    return build_application(
        services,
        keys=keys,
        tasks=tasks.values(),
        doors=open_doors(settings.doors, tasks),
        lifespan=partial(
            _lifespan,
            load=partial(
                _load,
                repository,
                registry,
                background,
                poll=settings.repository_poll_seconds,
                refresh=partial(refresh, settings.model_source, settings.model_repository)
                if settings.model_source
                else None,
                routes={name: first_route(task, settings) for name, task in tasks.items()},
            ),
            registry=registry,
            workers=workers,
            operations=operations,
            background=background,
        ),
    )


def require_extra(extra: str, *, setting: str) -> None:
    """Raise ConfigError, with the command that installs the extra, if a package is missing."""
    if missing := [name for name in EXTRAS[extra] if not _is_installed(name)]:
        raise ConfigError(
            f"{setting} is set, and {', '.join(missing)} not installed: "
            f"pip install 'paddlepool[{extra}]'"
        )


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # the parent package is missing, too
        return False


@asynccontextmanager
async def _lifespan(
    app: FastAPI,
    *,
    load: Callable[[threading.Event], Coroutine[Any, Any, None]],
    registry: ModelRegistry,
    workers: Workers | None,
    operations: Executor,
    background: Background | None,
) -> AsyncIterator[None]:
    """Load models in a task so the socket opens at once; close everything after the drain."""
    services: Services = app.state.paddlepool
    if services.settings.grpc_port is not None:
        await _open_grpc(services, app.state.gates)
    stopping = threading.Event()
    watching = asyncio.create_task(watch_loop(services.metrics.loop_woke), name="loop lag")
    if workers is not None:
        workers.codec.pool.start()
    loading = asyncio.create_task(load(stopping), name="load")
    if services.lifecycle.accepts_when_ready:
        while not (registry.ready() or services.lifecycle.draining):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    yield
    await services.lifecycle.close_doors()
    stopping.set()
    watching.cancel()
    loading.cancel()
    if background is not None:
        await in_thread("background end", background.close)
    await registry.close()
    if workers is not None:
        await workers.close()
    operations.shutdown(wait=False)
    if services.tracing is not None:
        await in_thread("tracing end", services.tracing.close)


async def _open_grpc(services: Services, gates: Gates) -> None:
    """Open the gRPC port. The import is local because gRPC is an optional extra."""
    from app.service.grpc.server import GrpcDoor

    door = GrpcDoor(services, gates, connections=services.settings.max_connections)
    await door.open()
    services.lifecycle.doors.append(door.close)


async def _load(
    repository: ModelRepository,
    registry: ModelRegistry,
    background: Background | None,
    stopping: threading.Event,
    *,
    poll: float,
    refresh: Callable[..., object] | None,
    routes: Mapping[str, str],
) -> None:
    """Load every model, then load changes found by polling every `poll` seconds (0: never)."""
    watcher = await in_thread("repository", partial(RepositoryWatcher, repository, registry))
    started = time.monotonic()
    try:
        await registry.load_all()
    except Exception:
        log.exception("the models could not be loaded")
    for served in registry.served():
        _log_served(served, routes)
    seconds = round(time.monotonic() - started, 2)
    log.info("loaded", extra={"ready": registry.ready(), "seconds": seconds})
    if background is not None:  # last: comparing must not delay the start
        background.start()
    if poll:
        await watcher.run(
            every=poll, refresh=None if refresh is None else partial(refresh, until=stopping)
        )


def _log_served(served: ServedModel, routes: Mapping[str, str]) -> None:
    """Log where the model answers, which program it runs and where its weights come from."""
    [group] = [each for each in served.groups() if each.name == served.config.default_group]
    weights = served.manifest.weights
    preview = ", preview" if weights.get("preview") else ""
    log.info(
        "%s@%d answers",
        served.name,
        served.version,
        extra={
            "at": routes.get(served.config.pipeline or "", f"/v2/models/{served.name}"),
            "predictor": group.name,
            "program": group.program or "reference",
            "weights": f"{weights.get('origin', '-')}{preview}",
        },
    )


def build_workers(settings: Settings, metrics: Metrics, tasks: Iterable[Task]) -> Workers:
    """Build the executors that pipelines share; /metrics counts their codec processes."""
    limits = PictureLimits(
        pixels=settings.image_max_pixels,
        side=settings.image_max_side,
        scans=settings.jpeg_max_scans,
        png_pixels=settings.png_max_pixels,
        seconds=settings.codec_timeout_seconds,
        formats=formats_named(settings.picture_formats),
    )
    pool = CodecPool(
        count=settings.codec_processes,
        warm_ups=[each for task in tasks for each in task.warm_ups],
        queue_size=settings.codec_queue_size,
        wall_seconds=settings.codec_timeout_seconds,
        memory_bytes=settings.codec_memory_bytes,
        on_restart=metrics.codec_restarted,
    )
    metrics.watch_codecs(lambda: pool.live)
    return Workers(
        codec=Codecs(
            pool=pool, pictures=PictureStore(budget=settings.picture_memory_bytes), limits=limits
        ),
        text=ThreadPoolExecutor(settings.text_threads, thread_name_prefix="text"),
    )


def registering(
    build: Callable[[ServedModelInfo], Pipeline | None],
    repository: ModelRepository,
    metrics: Metrics,
    *,
    warm: Callable[[ServedModelInfo], Awaitable[None]],
) -> BuildPipeline:
    """Return a builder that registers a model with the metrics, builds it and warms up."""

    def build_known(info: ServedModelInfo) -> Pipeline | None:
        _register_metrics(info.name, repository.config(info.name), metrics)
        return build(info)

    async def build_warm(info: ServedModelInfo) -> Pipeline | None:
        pipeline = await in_thread(f"{info.name} pipeline", partial(build_known, info))
        await warm(info)
        return pipeline

    return build_warm


async def _warm(info: ServedModelInfo, *, tasks: Mapping[str, Task], workers: Workers) -> None:
    """Wait for the codec processes if the model's task uses them. Raises BackendError."""
    task = task_of(info, tasks)
    if task is not None and task.warm_ups:
        await workers.codec.pool.opened()


def _register_metrics(name: str, config: ModelConfig, metrics: Metrics) -> None:
    metrics.expect_model(name, [group.name for group in config.instance_group])
