"""The composition root: builds every part once and ties their lifetimes to the application's."""

import asyncio
import importlib
import logging
import math
import threading
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial

from fastapi import FastAPI

from paddlepool.application import build_application, enabled_apis
from paddlepool.contracts.errors import ConfigError
from paddlepool.contracts.ports import Pipeline, ServedModelInfo
from paddlepool.contracts.resources import memory_limit
from paddlepool.engine.backends.compiled import CompiledPrograms
from paddlepool.engine.backends.process import ProcessBackend
from paddlepool.engine.concurrency import in_thread, in_thread_or_inline, log_failure
from paddlepool.engine.dataplane import DataPlane, StagesDone
from paddlepool.engine.pool.context import EngineContext, OnDemand
from paddlepool.engine.process.start import Spares
from paddlepool.engine.process.suspension import Suspension
from paddlepool.engine.registry.composed import ComposedModel
from paddlepool.engine.registry.composer import AnyModel
from paddlepool.engine.registry.promotions import Promotions, promotions_path
from paddlepool.engine.registry.registry import ModelRegistry
from paddlepool.engine.registry.watcher import RepositoryWatcher
from paddlepool.evidence.canary.control import CanaryControl
from paddlepool.evidence.canary.gate import command_of
from paddlepool.evidence.canary.judge import Judge
from paddlepool.evidence.live.background import Background, Prover, Shadow, warn_of_unknown_groups
from paddlepool.evidence.live.chooser import Chooser, Choosing
from paddlepool.evidence.live.shadow_predictor import IdleGate, ShadowPredictors
from paddlepool.evidence.live.stored_choices import StoredChoices
from paddlepool.models.repository.layout import ModelRepository, find_default_models, read_configs
from paddlepool.models.repository.state_file import state_path
from paddlepool.models.sources.sync import refresh
from paddlepool.observability.build_info import build_info, machine
from paddlepool.observability.metrics import Metrics
from paddlepool.service.api.info import read_gauges
from paddlepool.service.api.services import Lifecycle, Services
from paddlepool.service.server.system import watch_loop
from paddlepool.settings.server import Settings
from paddlepool.tasks.codecs.limits import PictureLimits, formats_named
from paddlepool.tasks.codecs.picture import PictureStore
from paddlepool.tasks.codecs.pool import CodecPool, Codecs
from paddlepool.tasks.plugins import OWN
from paddlepool.tasks.task import (
    Task,
    Workers,
    agreement_of,
    first_route,
    load_tasks,
    slices_of,
    task_of,
)

ON_DEMAND_SHARE = 4
"""By default, no further group starts on demand while the groups that were started on demand hold
1 / ON_DEMAND_SHARE of the memory."""

log = logging.getLogger("paddlepool.server")


def create_app(
    settings: Settings,
    *,
    lifecycle: Lifecycle | None = None,
    registry: ModelRegistry | None = None,
    tasks: Mapping[str, Task] | None = None,
    spares: Spares | None = None,
) -> FastAPI:
    """Build the application.

    Its lifespan starts to load the models. The server accepts connections before they are loaded,
    unless `lifecycle.accepts_when_ready` is set. `registry` is for tests; None means one over the
    model repository. `tasks` are the tasks by name; None means those of load_tasks(). `settings`
    include the settings that they declare (paddlepool.tasks.task.settings_class). Codecs and
    predictors use the processes of `spares` first; those that are left when the models have been
    loaded are ended.

    Raises ConfigError if the model repository or the key file cannot be read, the key file has no
    key, the settings name a task, a compatible API or a picture format that does not exist, a task
    or a compatible API cannot be loaded, two of them have the same name or endpoint, the settings
    enable gRPC or tracing and the extra is not installed, or tracing is on and an OTEL_* variable
    is wrong. Raises OSError if a model's config.toml cannot be read.
    """
    if settings.grpc_port is not None:
        with extra("grpc", setting="PADDLEPOOL_GRPC_PORT"):
            importlib.import_module("paddlepool.service.grpc.server")
    keys = settings.keys()  # first: a wrong key file must stop the start before any process exists
    tasks = load_tasks() if tasks is None else tasks
    for name, task in tasks.items():
        if task.origin != OWN:
            log.info("%s is a task", name, extra={"of": task.origin})
    compatible_apis = enabled_apis(settings, tasks)
    repository = ModelRepository(settings.model_repository)
    configs = read_configs(repository)
    default_models = find_default_models(configs, tasks, chosen=settings.default_models)
    warn_of_unknown_groups(settings.shadow_groups, configs.values())
    metrics = Metrics(build=build_info(), memory_limit=memory_limit())
    tracing = None
    stages_done: list[StagesDone] = [metrics.stages_done]
    if settings.tracing:
        with extra("otel", setting="PADDLEPOOL_TRACING"):
            from paddlepool.observability.tracing import open_tracing, trace_stages
        tracing = open_tracing()
        stages_done.append(trace_stages)
    judge = settings.canary_judge if settings.canary_judge != settings.replica else ""
    promotions = Promotions(promotions_path(settings.state_file), follows=bool(judge))
    choices = StoredChoices(settings.state_file, precision=settings.precision, machine=machine())
    for name, config in configs.items():
        metrics.expect_model(name, [group.name for group in config.instance_group])
    served = {config.pipeline for config in configs.values()}
    in_use = [task for name, task in tasks.items() if name in served]
    workers = build_workers(settings, metrics, in_use, spares)
    compiled = CompiledPrograms.beside(state_path(settings.state_file))
    backend = ProcessBackend(compiled=compiled, spares=spares)
    if registry is None:
        on_demand_bytes = settings.on_demand_memory_bytes or memory_limit() // ON_DEMAND_SHARE
        registry = ModelRegistry(
            repository,
            context=EngineContext(
                open_predictor=backend,
                observer=metrics,
                max_resident_bytes=settings.predictor_memory_bytes,
                on_demand=OnDemand(settings.on_demand_groups, on_demand_bytes),
                on_demand_idle_seconds=settings.on_demand_idle_seconds or math.inf,
                agreement_of=partial(agreement_of, tasks=tasks),
            ),
            build_pipeline=partial(build_pipeline, repository, metrics, tasks, workers),
            drain_timeout=settings.timeout_max_ms / 1000 + 5,  # the longest request and its cleanup
            stored_choice=choices.get,
            promotions=promotions,
        )
    canaries = CanaryControl(registry, promotions, judge=judge)
    metrics.gauges.read = partial(read_gauges, registry)
    metrics.gauges.canaries = canaries.statuses
    background = _open_background(canaries, settings, metrics, tasks, choices)
    operations = ThreadPoolExecutor(1, thread_name_prefix="operations")
    services = Services(
        settings=settings,
        registry=registry,
        dataplane=DataPlane(
            registry,
            default_models=default_models,
            stages_done=stages_done,
            traffic_listener=background,
        ),
        metrics=metrics,
        canaries=canaries,
        lifecycle=lifecycle or Lifecycle(),
        task_tensors={
            name: task.tensors(settings) for name, task in tasks.items() if task.tensors is not None
        },
        task_origins={name: task.origin for name, task in tasks.items()},
        tracing=tracing,
        operations=operations,
        confinement=lambda: {
            "codecs": workers.codec.pool.held or (),
            "predictors": backend.held or (),
        },
    )
    parts = _Parts(services, repository, tasks, workers, background, canaries, spares or Spares())
    return build_application(
        services,
        keys=keys,
        tasks=tasks.values(),
        compatible_apis=compatible_apis,
        lifespan=partial(_lifespan, parts=parts),
    )


@contextmanager
def extra(name: str, *, setting: str) -> Iterator[None]:
    """Raise ConfigError if the block imports a package that is not installed.

    The error names the `setting` and the command that installs the extra `name`.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{setting} is set, and {error.name} is not installed: pip install 'paddlepool[{name}]'"
        ) from None


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts whose lifetimes are tied to the application's."""

    services: Services
    repository: ModelRepository
    tasks: Mapping[str, Task]
    workers: Workers
    background: Background
    canaries: CanaryControl
    spares: Spares


@asynccontextmanager
async def _lifespan(app: FastAPI, *, parts: _Parts) -> AsyncIterator[None]:
    """Start to load the models and open gRPC; after the drain, close everything.

    The server accepts connections when this yields: at once, or with Lifecycle.accepts_when_ready
    when the models are ready or a signal ends the server first.
    """
    services, workers = parts.services, parts.workers
    stopping = threading.Event()
    watching = asyncio.create_task(watch_loop(services.metrics.loop_woke), name="loop lag")
    workers.codec.pool.start()
    loading = asyncio.create_task(_load(parts, stopping), name="load")
    for task in (watching, loading):
        task.add_done_callback(log_failure)
        task.add_done_callback(services.lifecycle.task_ended)
    if services.lifecycle.accepts_when_ready:
        while not (services.registry.ready() or services.lifecycle.draining):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    # If servers share the port, one that is stopped while it loads must not take calls from the
    # ready one.
    if services.settings.grpc_port is not None and not services.lifecycle.draining:
        from paddlepool.service.grpc.server import GrpcServer  # an optional extra

        grpc = GrpcServer(services, app.state.gates)
        await grpc.open()
        services.lifecycle.closers.append(grpc.close)
    yield
    await services.lifecycle.close_others()
    stopping.set()
    watching.cancel()
    loading.cancel()
    await in_thread_or_inline("spares", parts.spares.close)  # loading may not have come so far
    await in_thread("background end", parts.background.close)
    await services.registry.close()
    await workers.close()
    services.operations.shutdown(wait=False)
    if services.tracing is not None:
        await in_thread("tracing end", services.tracing.close)


async def _load(parts: _Parts, stopping: threading.Event) -> None:
    """Load every model, start to compare groups, and then follow changes until it is cancelled.

    A model that cannot be loaded is logged, and the server goes on without it. The changes are the
    verdicts of other servers on new versions and, if the settings say so, those of the repository.
    """
    settings, registry = parts.services.settings, parts.services.registry
    build = partial(RepositoryWatcher, parts.repository, registry)
    watcher = await in_thread_or_inline("repository", build)
    started = time.monotonic()
    try:
        await watcher.load_all()
    except Exception:
        log.exception("the models could not be loaded")
    else:
        if not registry.wanted():
            log.warning("the model repository %s has no model", settings.model_repository)
    await in_thread_or_inline("spares", parts.spares.close)
    for served in registry.all_served():
        task = parts.tasks.get(served.config.pipeline or "")
        at = first_route(task, settings) if task else f"/v2/models/{served.name}"
        facts = {"at": at, **_facts_of(served)}
        log.info("%s@%d answers", served.name, served.version, extra=facts)
    for name in parts.tasks.keys() - {served.config.pipeline for served in registry.all_served()}:
        log.info("no model serves the task %s", name)
    seconds = round(time.monotonic() - started, 2)
    log.info("loaded", extra={"ready": registry.ready(), "seconds": seconds})
    parts.background.start()  # last: comparing must not delay the start
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(parts.canaries.run(), name="canary")
        if poll := settings.repository_poll_seconds:
            source, directory = settings.model_source, settings.model_repository
            again = partial(refresh, source, directory, until=stopping) if source else None
            tasks.create_task(watcher.run(every=poll, refresh=again), name="poll")


def _facts_of(served: AnyModel) -> dict[str, str]:
    """Return what the log says of a model: its parts, or its default group, program and weights."""
    if isinstance(served, ComposedModel):
        parts = (f"{name}={part.name}@{part.version}" for name, part in served.parts.items())
        return {"parts": ", ".join(parts)}
    group = {group.name: group for group in served.groups()}[served.config.default_group]
    weights = served.manifest.weights
    preview = ", preview" if weights.get("preview") else ""
    return {
        "predictor": group.name,
        "program": group.program or "reference",
        "weights": f"{weights.get('origin', '-')}{preview}",
    }


def build_workers(
    settings: Settings, metrics: Metrics, tasks: Iterable[Task], spares: Spares | None = None
) -> Workers:
    """Build the executors that pipelines share; /metrics counts their codec processes.

    The codec processes are not started yet. They will be warmed up for `tasks`; other tasks can use
    them too. Raises ConfigError if the settings name a picture format that does not exist.
    """
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
        warm_ups=[warm_up for task in tasks for warm_up in task.warm_ups],
        queue_size=settings.codec_queue_size,
        wall_seconds=settings.codec_timeout_seconds,
        memory_bytes=settings.codec_memory_bytes,
        on_restart=metrics.codec_restarted,
        spares=spares,
    )
    metrics.gauges.codec_processes = lambda: pool.live
    return Workers(
        codec=Codecs(
            pool=pool, pictures=PictureStore(budget=settings.picture_memory_bytes), limits=limits
        ),
        text=ThreadPoolExecutor(settings.text_threads, thread_name_prefix="text"),
    )


def _open_background(
    canaries: CanaryControl,
    settings: Settings,
    metrics: Metrics,
    tasks: Mapping[str, Task],
    choices: StoredChoices,
) -> Background:
    """Build the thread that compares groups and versions; it is not started yet.

    If `prove_groups` is off, it does not choose default groups either.
    """
    registry, prove = canaries.registry, settings.prove_groups
    suspension = Suspension()
    idle_gate = IdleGate(suspension)
    predictors = ShadowPredictors(ProcessBackend(suspension=suspension), idle_gate)
    shadow = Shadow(
        registry,
        predictors,
        fraction=settings.shadow_fraction,
        groups=settings.shadow_groups,
        max_predictors=settings.shadow_max_predictors,
        observer=metrics,
        agreement_of=partial(agreement_of, tasks=tasks),
    )
    prover = Prover(registry, predictors, which=prove)
    precision: Choosing = "off" if prove == "off" else settings.precision
    chooser = Chooser(registry, predictors, precision=precision, store=choices.store)
    judge = Judge(
        registry,
        predictors,
        canaries,
        slices_of=partial(slices_of, tasks=tasks),
        agreement_of=partial(agreement_of, tasks=tasks),
        quality_command=partial(
            command_of, repository=settings.model_repository, data=settings.quality_data
        ),
        max_resident_bytes=settings.predictor_memory_bytes,
    )
    return Background(idle_gate, shadow, prover, chooser, judge)


async def build_pipeline(
    repository: ModelRepository,
    metrics: Metrics,
    tasks: Mapping[str, Task],
    workers: Workers,
    info: ServedModelInfo,
) -> Pipeline | None:
    """Register a model with the metrics and build its pipeline; None if it has no task.

    Waits for the codec processes if its task warms them up. Raises ConfigError if the task does not
    exist or the model does not fit it, BackendError if the codec processes do not start, and the
    errors of ModelRepository.config().
    """
    task = task_of(info, tasks)

    def build() -> Pipeline | None:
        config = repository.config(info.name)
        metrics.expect_model(info.name, [group.name for group in config.instance_group])
        return None if task is None else task.build(info, workers)

    pipeline = await in_thread(f"{info.name} pipeline", build)
    if task is not None and task.warm_ups:
        await workers.codec.pool.opened()
    return pipeline
