"""GET /info: models, the provenance of their weights, groups and limits. GET /metrics."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from functools import cache
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from paddlepool import __version__
from paddlepool.contracts.resources import processor
from paddlepool.contracts.status import CANNOT_START, Choice, GroupStatus, ModelStatus
from paddlepool.engine.registry.composed import ComposedModel
from paddlepool.engine.registry.load_history import NOT_LOADED
from paddlepool.engine.registry.model import ServedModel
from paddlepool.engine.registry.registry import ModelRegistry
from paddlepool.observability.metrics import ModelGauges
from paddlepool.service.api.services import Services, ServicesDep
from paddlepool.settings.server import Settings

LIMITS = (
    "infer_max_bytes", "infer_json_max_bytes", "body_max_bytes", "image_max_pixels",
    "image_max_side", "jpeg_max_scans", "png_max_pixels", "form_max_fields", "timeout_default_ms",
    "timeout_max_ms", "header_timeout_seconds", "header_max_bytes", "receive_timeout_seconds",
    "keep_alive_seconds", "send_stall_seconds", "quota_requests_per_minute",
    "quota_pixels_per_minute", "quota_texts_per_minute", "quota_concurrent_requests",
)  # fmt: skip
"""Settings of the server that limit clients. /info adds the numeric settings of the tasks."""


class GroupInfo(BaseModel):
    """One instance group: `count` predictor processes with `threads` threads each.

    All of them run the model in the same configuration.
    """

    name: str
    backend: str
    program: str | None = Field(
        None, description="The derived program it runs; null: the version's reference program."
    )
    threads: int
    count: int
    live: int = Field(description="Predictors that answer now.")
    started: bool = Field(description="False if the next request for it must start it first.")
    default: bool = Field(description="Whether it answers requests that name no instance group.")
    ready: bool
    effective: bool | None = Field(
        None,
        description="Whether its outputs or times differ from those of its base, another instance"
        " group; null: unknown.",
    )
    proof: str = Field(description="The evidence for `effective`, or why there is none.")
    reason: str | None = Field(
        None, description="Why it is not ready; for a ready group, why it has no known effect."
    )
    queue_limit: int = Field(description="Maximum number of waiting jobs.")


class CandidateInfo(BaseModel):
    """Measurements of an instance group that may become the default group; null: unknown.

    The first group is the one that serves until the candidates are measured.
    """

    group: str
    fit: bool = Field(
        description="Whether it is clearly faster than the first group and accurate enough."
    )
    reason: str
    gain: float | None = Field(
        None,
        description="Its throughput divided by that of the first group, on the same cores.",
    )
    gain_low: float | None = Field(None, description="Lower end of its 99 % interval.")
    gain_high: float | None = None
    seconds: float | None = Field(None, description="Seconds of one run while nothing else runs.")
    resident_bytes: int | None = Field(None, description="Memory of one of its processes.")
    largest_difference: float | None = Field(
        None, description="Largest absolute difference from the golden output."
    )
    mean_difference: float | None = None
    agreement: float | None = Field(
        None, description="Agreement with the golden output by the task's measure, 0 to 1."
    )


class ChoiceInfo(BaseModel):
    """The instance group for requests that name none, and why it was chosen."""

    group: str
    by: str = Field(
        description="config: config.toml names it; start: it serves until the candidates are"
        " measured; measured: it was the best of them; kept: measured before this start."
    )
    reason: str
    candidates: list[CandidateInfo]
    at: float | None = Field(
        None, description="Time of the measurement in seconds since 1970; null: not measured."
    )


class ModelInfo(BaseModel):
    """One version of a model. Null members do not apply, or are unknown until it is served.

    Further members are the `[parameters]` of its config.toml that tasks show, such as `labels`.
    """

    model_config = ConfigDict(extra="allow")

    name: str
    version: int | None
    state: str
    reason: str | None = Field(None, description="Why it is not ready.")
    task: str | None = Field(None, description="The task that uses it, if any.")
    parts: dict[str, str] | None = Field(
        None, description="The parts of a composed model, each `name@version`; null: not composed."
    )
    sha256: str | None = Field(None, description="One fingerprint over all files of the version.")
    files: dict[str, str] | None = Field(None, description="sha256 of each file.")
    weights: dict[str, Any] | None = Field(
        None, description="Origin and licence of the weights, and whether they are preliminary."
    )
    predictors: list[GroupInfo] | None = Field(None, description="Its instance groups.")
    choice: ChoiceInfo | None = Field(None, description="Its default instance group.")


class ThreadBudgetInfo(BaseModel):
    """The largest number of threads that one model uses, and the cores the server may use."""

    cores: float
    threads: int
    warning: str | None = Field(description="Set if there are more threads than cores.")


class ProcessorInfo(BaseModel):
    """The features of the processor that decide which instance groups are fast and exact.

    Frameworks choose their kernels by these instruction sets.
    """

    name: str
    instruction_sets: list[str] = Field(description="Those that this processor has.")
    missing: list[str] = Field(description="Those that this processor lacks.")
    remark: str | None = Field(description="Consequence for int8 programs; null: none.")


class Info(BaseModel):
    """The document of /info; APIs that are compatible with other servers may add members."""

    model_config = ConfigDict(extra="allow")

    name: str = "paddlepool"
    version: str
    ready: bool
    tasks: dict[str, str] = Field(
        description="The tasks of this server, each with its distribution and version, or with the"
        " environment variable that names its module."
    )
    default_models: dict[str, str]
    models: list[ModelInfo]
    limits: dict[str, int | float]
    thread_budget: ThreadBudgetInfo
    processor: ProcessorInfo
    confinement: dict[str, list[str]] = Field(
        description="Active confinement of codec and predictor processes: those of"
        " no_new_privileges, landlock and seccomp that the kernel supports."
    )


ExtraMembers = Callable[[Services], Mapping[str, Any]]
"""A function that returns additional members of the document of /info."""


def router(*, card: Sequence[str], extra: Sequence[ExtraMembers] = ()) -> APIRouter:
    """Build the routes of /info and /metrics.

    `card` names the parameters that /info shows for each model. Each function of `extra` returns
    further members of its document.
    """

    async def info(services: ServicesDep) -> Info:
        """Models, versions, fingerprints, provenance of the weights, instance groups and limits."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(services.operations, _info, services, card, extra)

    routes = APIRouter(tags=["operations"])
    routes.add_api_route("/info", info, operation_id="info")
    routes.add_api_route(
        "/metrics",
        metrics,
        operation_id="metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {}, "application/openmetrics-text": {}}}},
    )
    return routes


async def metrics(
    request: Request,
    services: ServicesDep,
    names: Annotated[
        list[str] | None, Query(alias="name[]", description="Only the series with these names.")
    ] = None,
) -> Response:
    """Every metric family; see docs/metrics.md. OpenMetrics if `Accept` asks for it."""
    accept = ",".join(request.headers.getlist("accept"))
    text, content_type = await asyncio.to_thread(services.metrics.render, accept, names or ())
    return Response(text, headers={"Content-Type": content_type})


def _info(services: Services, card: Sequence[str], extra: Sequence[ExtraMembers]) -> Info:
    members = {name: value for read in extra for name, value in read(services).items()}
    budget, lifecycle = services.registry.budget(), services.lifecycle
    return Info(
        **members,
        version=__version__,
        ready=services.registry.ready() and not (lifecycle.draining or lifecycle.failure),
        tasks=dict(services.task_origins),
        default_models=dict(services.dataplane.default_models),
        models=[_model(services, status, card) for status in shown(services.registry.index())],
        limits=limits(services.settings),
        thread_budget=ThreadBudgetInfo.model_validate(budget, from_attributes=True),
        processor=processor_info(),
        confinement={kind: list(held) for kind, held in services.confinement().items()},
    )


@cache
def processor_info() -> ProcessorInfo:
    return ProcessorInfo.model_validate(processor(), from_attributes=True)


def shown(index: Sequence[ModelStatus]) -> Iterator[ModelStatus]:
    """Yield all versions, except those with the reason NOT_LOADED that are older than a ready one.

    `index` has the newest version of each model first.
    """
    ready: dict[str, int] = {}
    for status in index:  # newest version first
        version = status.version or 0
        if status.state == "READY":
            ready.setdefault(status.name, version)
        if status.reason != NOT_LOADED or version >= ready.get(status.name, 0):
            yield status


def limits(settings: Settings) -> dict[str, int | float]:
    """Return the values of LIMITS and of the tasks' numeric settings, by name."""
    of_tasks = [name for name in type(settings).model_fields if name not in Settings.model_fields]
    values = {name: getattr(settings, name) for name in (*LIMITS, *of_tasks)}
    return {name: value for name, value in values.items() if isinstance(value, int | float)}


def _model(services: Services, status: ModelStatus, card: Sequence[str]) -> ModelInfo:
    known = asdict(status) | {"reason": status.reason or None}
    served = services.registry.find(status.name, status.version)
    if served is None:
        return ModelInfo(**dict.fromkeys(card) | known)
    config, manifest = served.config, served.manifest
    described = ModelInfo(
        **{name: config.parameters.get(name) for name in card} | known,
        task=config.pipeline,
        sha256=manifest.sha256(),
        files={name: entry.sha256 for name, entry in manifest.files.items()},
        weights=dict(manifest.weights),
    )
    if isinstance(served, ComposedModel):
        described.parts = part_names(served)
    else:
        described.choice = ChoiceInfo.model_validate(served.choice, from_attributes=True)
        described.predictors = [GroupInfo(**members) for members in group_members(served)]
    return described


def part_names(served: ComposedModel) -> dict[str, str]:
    """Return each part as `name@version`."""
    return {name: f"{part.name}@{part.version}" for name, part in served.parts.items()}


def group_members(served: ServedModel) -> list[dict[str, Any]]:
    """Return the members of GroupInfo and the other fields of GroupStatus for each group."""
    # asdict() would copy every value of many groups.
    names = [field.name for field in fields(GroupStatus)]
    return [
        {name: getattr(group, name) for name in names}
        | {
            "default": group.name == served.config.default_group,
            "effective": group.effect.effective,
            "proof": group.effect.reason,
            "reason": _reason(group, served.choice),
        }
        for group in served.groups()
    ]


def _reason(group: GroupStatus, choice: Choice) -> str | None:
    if group.ready:
        return None if group.effect.effective else group.effect.reason
    # If a measurement could not start the group, its reason explains more than "no request has
    # named this group".
    trials = [trial.reason for trial in choice.candidates if trial.group == group.name]
    reasons = (group.effect.reason, *trials)
    return next((reason for reason in reasons if reason.startswith(CANNOT_START)), group.reason)


def read_gauges(registry: ModelRegistry) -> list[ModelGauges]:
    """Return the engine's state for the metrics, an entry for each served version.

    A model that should be served but is not has one entry, which is not ready.
    """
    gauges = [
        ModelGauges(
            model=model.name,
            version=model.version,
            ready=model.ready(),
            default_group=model.config.default_group,
            chosen_by=model.choice.by,
            groups=model.groups(),
        )
        for model in registry.served()
    ]
    gauges += [
        ModelGauges(model=model.name, version=model.version, ready=model.ready())
        for model in registry.composed()
    ]
    missing = set(registry.expected()) - {gauge.model for gauge in gauges}
    newest = {status.name: status.version or 0 for status in reversed(registry.index())}
    gauges += [
        ModelGauges(model=name, version=newest.get(name, 0), ready=False)
        for name in sorted(missing)
    ]
    return gauges
