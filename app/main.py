"""The composition root: builds every part once, and ties their lives to the application's."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import cast

from fastapi import APIRouter, FastAPI

from app.api.application import build_application
from app.api.services import Lifecycle, Services
from app.backends.process import ProcessBackend
from app.codecs.limits import PictureLimits
from app.codecs.picture import PictureStore
from app.codecs.pool import CodecPool
from app.codecs.service import Codecs
from app.contracts.errors import ConfigError, PaddlepoolError
from app.contracts.ports import Pipeline, ServedModelInfo
from app.dataplane import DataPlane
from app.engine.registry.registry import BuildPipeline, ModelRegistry
from app.engine.registry.watcher import RepositoryWatcher
from app.live.background import Background
from app.live.idle_gate import IdleGate
from app.live.ports import Agreement
from app.live.prover import Prover
from app.live.shadow import Shadow
from app.live.shadow_predictor import ShadowPredictors
from app.observability.build_info import build_info
from app.observability.gauges import GroupGauges, ModelGauges
from app.observability.metrics import Metrics
from app.pipelines import PIPELINES
from app.process.suspension import Suspension
from app.repository.config import ModelConfig
from app.repository.layout import ModelRepository
from app.settings import KEYS_FILE, PREFIX, Settings
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

    Raises ConfigError when the model repository or the key file cannot be read, the key file has no
    key, or the settings name a task that there is not.
    """
    keys = read_keys(settings)  # first: an unfit key file must end the start before any process
    repository = ModelRepository(settings.model_repository)
    configs = read_configs(repository)
    check_names(settings, configs, tasks=pipelines)
    metrics = Metrics(build=build_info())
    for name, config in configs.items():
        _introduce(name, config, metrics)
    workers: Workers | None = None
    if registry is None:
        workers = build_workers(settings, metrics)
        registry = ModelRegistry(
            repository,
            open_predictor=ProcessBackend(),
            build_pipeline=introduced(PipelineBuilder(pipelines, workers), repository, metrics),
            observer=metrics,
            max_resident_bytes=settings.predictor_memory_bytes,
            max_on_demand=settings.on_demand_groups,
        )
    metrics.watch(partial(read_gauges, registry))
    background = build_background(settings, registry, metrics, pipelines)
    operations = ThreadPoolExecutor(1, thread_name_prefix="operations")
    default_models = {**find_default_models(configs, pipelines), **settings.default_models}
    services = Services(
        settings=settings,
        registry=registry,
        dataplane=DataPlane(
            registry, observer=metrics, default_models=default_models, traffic_listener=background
        ),
        metrics=metrics,
        lifecycle=lifecycle or Lifecycle(),
        default_models=default_models,
        operations=operations,
    )
    return build_application(
        services,
        keys=keys,
        tasks=task_routers(pipelines),
        lifespan=partial(
            _lifespan,
            load=partial(
                _load, repository, registry, background, poll=settings.repository_poll_seconds
            ),
            registry=registry,
            workers=workers,
            operations=operations,
            background=background,
        ),
    )


@asynccontextmanager
async def _lifespan(
    app: FastAPI,
    *,
    load: Callable[[threading.Event], None],
    registry: ModelRegistry,
    workers: Workers | None,
    operations: Executor,
    background: Background | None,
) -> AsyncIterator[None]:
    """Load behind the open socket; at the end, close what was opened. uvicorn has drained then."""
    del app
    stopping = threading.Event()
    threading.Thread(target=load, args=(stopping,), name="load", daemon=True).start()
    yield
    stopping.set()
    if background is not None:
        await asyncio.to_thread(background.close)
    await asyncio.to_thread(registry.close)
    if workers is not None:
        await asyncio.to_thread(workers.close)
    operations.shutdown(wait=False)


def _load(
    repository: ModelRepository,
    registry: ModelRegistry,
    background: Background | None,
    stopping: threading.Event,
    *,
    poll: float,
) -> None:
    """Load everything, then what changes, looking every `poll` seconds (0: never)."""
    watcher = RepositoryWatcher(repository, registry)
    started = time.monotonic()
    try:
        registry.load_all()
    except Exception:
        log.exception("the models could not be loaded")
    seconds = round(time.monotonic() - started, 2)
    log.info("loaded", extra={"ready": registry.ready(), "seconds": seconds})
    if background is not None:  # only now: it must not delay the start
        background.start()
    if poll:
        watcher.run(every=poll, until=stopping)


def build_background(
    settings: Settings,
    registry: ModelRegistry,
    metrics: Metrics,
    pipelines: Mapping[str, str],
) -> Background | None:
    """What compares predictor groups in idle moments; None where the settings ask for nothing."""
    if settings.prove_groups == "off" and not settings.shadow_fraction:
        return None
    suspension = Suspension()
    idle_gate = IdleGate(suspension)
    shadow_predictors = ShadowPredictors(
        open_predictor=ProcessBackend(suspension=suspension),
        suspension=suspension,
        idle_gate=idle_gate,
    )
    return Background(
        idle_gate,
        shadow=Shadow(
            registry,
            shadow_predictors,
            fraction=settings.shadow_fraction,
            groups=settings.shadow_groups,
            max_predictors=settings.shadow_max_predictors,
            observer=metrics,
            agreement_of=partial(_agreement_of, pipelines),
        ),
        prover=Prover(registry, shadow_predictors, which=settings.prove_groups),
    )


def _agreement_of(pipelines: Mapping[str, str], info: ServedModelInfo) -> Agreement | None:
    if info.pipeline is None:
        return None
    measure = getattr(importlib.import_module(pipelines[info.pipeline]), "agreement", None)
    return cast(Agreement, measure(info)) if measure is not None else None


def build_workers(settings: Settings, metrics: Metrics) -> Workers:
    """The executors that pipelines share, and /metrics knows of the codec processes."""
    pool = CodecPool(
        count=settings.codec_processes,
        queue_size=settings.codec_queue_size,
        wall_seconds=settings.codec_timeout_seconds,
        memory_bytes=settings.codec_memory_bytes,
        on_restart=metrics.codec_restarted,
    )
    metrics.watch_codecs(lambda: pool.status().live)
    return Workers(
        codec=Codecs(
            pool=pool,
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


def introduced(
    build: BuildPipeline, repository: ModelRepository, metrics: Metrics
) -> BuildPipeline:
    """`build`, and the metrics know each model and group before it serves: some appear later."""

    def build_known(info: ServedModelInfo) -> Pipeline | None:
        _introduce(info.name, repository.config(info.name), metrics)
        return build(info)

    return build_known


def _introduce(name: str, config: ModelConfig, metrics: Metrics) -> None:
    metrics.expect_model(name, [group.name for group in config.instance_group])


class PipelineBuilder:
    """Builds the pipeline that a model's config.toml names; most models have none."""

    def __init__(self, pipelines: Mapping[str, str], workers: Workers) -> None:
        self._pipelines = pipelines
        self._workers = workers

    def __call__(self, info: ServedModelInfo) -> Pipeline | None:
        """Raises ConfigError when there is no such task or the model does not fit it."""
        if info.pipeline is None:
            return None
        if info.pipeline not in self._pipelines:
            raise ConfigError(
                f"{info.name}: pipeline is {info.pipeline!r}, "
                f"there are {', '.join(self._pipelines)}",
                received=info.pipeline,
            )
        package = importlib.import_module(self._pipelines[info.pipeline])
        return cast(Pipeline, package.build(info, self._workers))


def read_configs(repository: ModelRepository) -> dict[str, ModelConfig]:
    """The configuration of every model that has a fit one; the registry reports the others."""
    configs = {}
    for name in repository.names():
        with contextlib.suppress(PaddlepoolError):
            configs[name] = repository.config(name)
    return configs


def find_default_models(configs: Mapping[str, ModelConfig], tasks: Iterable[str]) -> dict[str, str]:
    """For each task the model whose configuration says so; else the first, by name, that has it.

    Not the first that loads: a damaged model must not hand its task to one that does it otherwise.
    """
    found: dict[str, str] = {}
    for task in tasks:
        names = [name for name in sorted(configs) if configs[name].pipeline == task]
        chosen = [name for name in names if configs[name].default]
        if len(chosen or names) > 1:
            log.warning(
                "%s models of the task %s %s; %r answers requests that name none",
                len(chosen or names),
                task,
                "have default = true" if chosen else "and none has default = true",
                (chosen or names)[0],
            )
        if names:
            found[task] = (chosen or names)[0]
    return found


def read_keys(settings: Settings) -> tuple[bytes, ...]:
    """The API keys. Raises ConfigError for a key file that cannot be read or has none."""
    try:
        return settings.keys()
    except OSError as error:
        raise ConfigError(f"{KEYS_FILE}: {error.filename}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(str(error)) from None


def check_names(
    settings: Settings, configs: Mapping[str, ModelConfig], *, tasks: Iterable[str]
) -> None:
    """Find typing errors in what the settings name. Raises ConfigError for an unknown task.

    A model or a group may come later, with a poll or a load: those not there now are only logged.
    """
    known = sorted(tasks)
    for task, model in settings.default_models.items():
        if task not in known:
            raise ConfigError(
                f"{PREFIX}DEFAULT_MODELS: there is no task {task!r}, there are {', '.join(known)}",
                limit=", ".join(known),
                received=task,
            )
        if model not in configs or configs[model].pipeline != task:
            log.warning(
                "%sDEFAULT_MODELS: the repository has no model %r for the task %s yet",
                PREFIX, model, task,
            )  # fmt: skip
    groups = {
        group.name
        for config in configs.values()
        for group in config.instance_group
        if group.name != config.default_group
    }
    for name in settings.shadow_groups:
        if name not in groups:
            log.warning(
                "%sSHADOW_GROUPS: no model has a predictor group %r besides its default one yet",
                PREFIX, name,
            )  # fmt: skip


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
                    effective=group.effect.effective,
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
