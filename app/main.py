"""The composition root: builds every part once, and ties their lives to the application's."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import cast

from fastapi import APIRouter, FastAPI

from app.api.application import build_application
from app.api.services import Lifecycle, Services
from app.backends.process import ProcessBackend
from app.build_info import build_info
from app.codecs.limits import PictureLimits
from app.codecs.picture import PictureStore
from app.codecs.pool import ChildPool
from app.codecs.service import Codecs
from app.dataplane import DataPlane
from app.engine.child import Limits
from app.engine.config import ModelConfig
from app.engine.ports import Pipeline, ServedModelInfo
from app.engine.registry import ModelRegistry
from app.engine.repository import ModelRepository
from app.errors import ConfigError, PaddlepoolError
from app.metrics import GroupGauges, Metrics, ModelGauges
from app.pipelines import PIPELINES
from app.settings import Settings
from app.workers import Workers

log = logging.getLogger("paddlepool.server")


def create_app(
    settings: Settings,
    *,
    lifecycle: Lifecycle | None = None,
    registry: ModelRegistry | None = None,
    pipelines: Mapping[str, str] = PIPELINES,
) -> FastAPI:
    """The application. Loading starts with its lifespan and goes on behind the open socket.

    Raises ConfigError when the model repository cannot be read, OSError when the key file cannot.
    """
    repository = ModelRepository(settings.model_repository)
    configs = read_configs(repository)
    metrics = Metrics(build=build_info())
    for name, config in configs.items():
        metrics.expect_model(name, [group.name for group in config.instance_group])
    workers: Workers | None = None
    if registry is None:
        workers = build_workers(settings)
        registry = ModelRegistry(
            repository,
            open_predictor=ProcessBackend(),
            build_pipeline=PipelineBuilder(repository, pipelines, workers),
            observer=metrics,
        )
    metrics.watch(partial(read_gauges, registry))
    operations = ThreadPoolExecutor(1, thread_name_prefix="operations")
    default_models = {**find_default_models(configs, pipelines), **settings.default_models}
    services = Services(
        settings=settings,
        registry=registry,
        dataplane=DataPlane(registry, observer=metrics, default_models=default_models),
        metrics=metrics,
        lifecycle=lifecycle or Lifecycle(),
        default_models=default_models,
        operations=operations,
    )
    return build_application(
        services,
        tasks=task_routers(pipelines),
        lifespan=partial(_lifespan, registry=registry, workers=workers, operations=operations),
    )


@asynccontextmanager
async def _lifespan(
    app: FastAPI, *, registry: ModelRegistry, workers: Workers | None, operations: Executor
) -> AsyncIterator[None]:
    """Load behind the open socket; at the end, close what was opened. uvicorn has drained then."""
    del app
    threading.Thread(target=_load, args=(registry,), name="load-all", daemon=True).start()
    yield
    await asyncio.to_thread(registry.close)
    if workers is not None:
        await asyncio.to_thread(workers.close)
    operations.shutdown(wait=False)


def _load(registry: ModelRegistry) -> None:
    started = time.monotonic()
    try:
        registry.load_all()
    except Exception:
        log.exception("the models could not be loaded")
    seconds = round(time.monotonic() - started, 2)
    log.info("loaded", extra={"ready": registry.ready(), "seconds": seconds})


def build_workers(settings: Settings) -> Workers:
    """The executors that pipelines share."""
    return Workers(
        codec=Codecs(
            pool=ChildPool(
                count=settings.codec_processes,
                queue_size=settings.codec_queue_size,
                wall_seconds=settings.codec_timeout_seconds,
                limits=Limits(address_space=settings.codec_memory_bytes),
            ),
            pictures=PictureStore(budget=settings.picture_memory_bytes),
            limits=PictureLimits(
                pixels=settings.image_max_pixels,
                side=settings.image_max_side,
                scans=settings.jpeg_max_scans,
                png_pixels=settings.png_max_pixels,
            ),
        ),
        text=ThreadPoolExecutor(settings.text_threads, thread_name_prefix="text"),
    )


def task_routers(pipelines: Mapping[str, str]) -> list[APIRouter]:
    """The endpoint of each task."""
    return [importlib.import_module(package).endpoints() for package in pipelines.values()]


class PipelineBuilder:
    """Builds the pipeline that a model's config.toml names; most models have none."""

    def __init__(
        self, repository: ModelRepository, pipelines: Mapping[str, str], workers: Workers
    ) -> None:
        self._repository = repository
        self._pipelines = pipelines
        self._workers = workers

    def __call__(self, info: ServedModelInfo) -> Pipeline | None:
        """Raises ConfigError when there is no such task or the model does not fit it."""
        task = self._repository.config(info.name).pipeline
        if task is None:
            return None
        if task not in self._pipelines:
            raise ConfigError(
                f"{info.name}: pipeline is {task!r}, there are {', '.join(self._pipelines)}",
                received=task,
            )
        package = importlib.import_module(self._pipelines[task])
        return cast(Pipeline, package.build(info, self._workers))


def read_configs(repository: ModelRepository) -> dict[str, ModelConfig]:
    """The configuration of every model that has a fit one; the registry reports the others."""
    configs = {}
    for name in repository.names():
        with contextlib.suppress(PaddlepoolError):
            configs[name] = repository.config(name)
    return configs


def find_default_models(configs: Mapping[str, ModelConfig], tasks: Iterable[str]) -> dict[str, str]:
    """For each task the first model, by name, whose configuration names it."""
    found = ((task, name) for task in tasks for name in sorted(configs, reverse=True))
    return {task: name for task, name in found if configs[name].pipeline == task}


def read_gauges(registry: ModelRegistry) -> list[ModelGauges]:
    """What /metrics shows of the engine at this moment; a model that serves nothing is not ready.

    Such a model is shown under its newest version, or under 0 where it has none.
    """
    gauges = [
        ModelGauges(
            model=model.name,
            version=model.version,
            ready=model.ready(),
            groups=tuple(
                GroupGauges(
                    predictor=group.name,
                    default=group.name == model.config.default_group,
                    queue_depth=group.queue_depth,
                    queue_limit=group.queue_limit,
                    inflight=group.inflight,
                    resident_bytes=group.resident_bytes,
                )
                for group in model.groups()
            ),
        )
        for model in registry.served()
    ]
    missing = set(registry.wanted()) - {gauge.model for gauge in gauges}
    newest = {status.name: status.version or 0 for status in reversed(registry.index())}
    gauges += [
        ModelGauges(model=name, version=newest.get(name, 0), ready=False)
        for name in sorted(missing)
    ]
    return gauges
