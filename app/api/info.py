"""GET /info: what is served, from which weights, by which predictors, within which limits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field

from app import __version__
from app.api.services import Services, ServicesDep
from app.contracts.errors import ModelNotFound, ModelNotReady
from app.contracts.status import UNKNOWN_EFFECT, GroupStatus, ModelStatus
from app.engine.registry.load_history import NOT_LOADED
from app.engine.registry.model import ServedModel
from app.settings import Settings

LIMITS = (
    "segment_max_bytes",
    "sentiment_max_bytes",
    "infer_max_bytes",
    "infer_json_max_bytes",
    "body_max_bytes",
    "image_max_pixels",
    "image_max_side",
    "jpeg_max_scans",
    "png_max_pixels",
    "text_max_characters",
    "text_max_inputs",
    "form_max_fields",
    "timeout_default_ms",
    "timeout_max_ms",
    "header_timeout_seconds",
    "header_max_bytes",
    "receive_timeout_seconds",
    "keep_alive_seconds",
    "send_stall_seconds",
)


class GroupInfo(BaseModel):
    """One predictor configuration of a model: `count` processes of `threads` threads each."""

    name: str
    backend: str
    threads: int
    count: int
    live: int = Field(description="Processes that answer now.")
    started: bool = Field(description="False for a group that starts when first asked for.")
    default: bool = Field(description="Whether it answers requests that name no predictor.")
    ready: bool
    effective: bool | None = Field(
        None,
        description="Whether it differs from its base group in outputs or times; null: not known.",
    )
    proof: str = Field(description="How that was found out, or why it was not.")
    reason: str | None = Field(
        None, description="Why it is not ready; of a ready one, why it is not known to do anything."
    )
    queue_limit: int = Field(description="Most jobs that wait for this group.")


class ModelInfo(BaseModel):
    """One version of a model. What is null is not known until the version is ready."""

    name: str
    version: int | None
    state: str
    reason: str | None = Field(None, description="Why it is not ready.")
    task: str | None = Field(None, description="The endpoint that uses it, if any.")
    sha256: str | None = Field(None, description="One fingerprint over all files of the version.")
    files: dict[str, str] | None = Field(None, description="sha256 of each file.")
    weights: dict[str, Any] | None = Field(
        None, description="Where the weights come from, their licence, and whether preliminary."
    )
    labels: list[str] | None = None
    labels_zh: list[str] | None = None
    predictors: list[GroupInfo] | None = None


class ThreadBudgetInfo(BaseModel):
    """Threads of the model that uses most, against the cores it may use."""

    cores: float
    threads: int
    warning: str | None = Field(description="Set when predictors wait for each other.")


class Info(BaseModel):
    name: str = "paddlepool"
    version: str
    ready: bool
    default_models: dict[str, str]
    models: list[ModelInfo]
    limits: dict[str, int | float]
    thread_budget: ThreadBudgetInfo


def router() -> APIRouter:
    """What a client reads instead of guessing."""
    routes = APIRouter(tags=["operations"])
    routes.add_api_route("/info", info, operation_id="info")
    return routes


async def info(services: ServicesDep) -> Info:
    """Models, versions, fingerprints, provenance of the weights, predictor groups and limits."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(services.operations, _info, services)


def _info(services: Services) -> Info:
    budget = services.registry.budget()
    return Info(
        version=__version__,
        ready=services.registry.ready() and not services.lifecycle.draining,
        default_models=dict(services.default_models),
        models=[_model(services, status) for status in _shown(services.registry.index())],
        limits=limits(services.settings),
        thread_budget=ThreadBudgetInfo(
            cores=budget.cores, threads=budget.threads, warning=budget.warning
        ),
    )


def _shown(index: Sequence[ModelStatus]) -> Iterator[ModelStatus]:
    """Without the versions that a newer one has taken the place of: nothing is missing there."""
    ready: dict[str, int] = {}
    for status in index:  # newest version first
        version = status.version or 0
        if status.state == "READY":
            ready.setdefault(status.name, version)
        if status.reason != NOT_LOADED or version >= ready.get(status.name, 0):
            yield status


def limits(settings: Settings) -> dict[str, int | float]:
    """The settings a client runs into, under their own names."""
    return {name: getattr(settings, name) for name in LIMITS}


def _model(services: Services, status: ModelStatus) -> ModelInfo:
    known = ModelInfo(
        name=status.name, version=status.version, state=status.state, reason=status.reason or None
    )
    try:
        with services.registry.lease(status.name, status.version) as served:
            return known.model_copy(update=_served(served))
    except (ModelNotFound, ModelNotReady):
        return known


def _served(served: ServedModel) -> dict[str, Any]:
    parameters = served.config.parameters
    return {
        "task": served.config.pipeline,
        "sha256": served.manifest.sha256(),
        "files": {name: entry.sha256 for name, entry in served.manifest.files.items()},
        "weights": dict(served.manifest.weights),
        "labels": parameters.get("labels"),
        "labels_zh": parameters.get("labels_zh"),
        "predictors": [
            GroupInfo(
                name=group.name,
                backend=group.backend,
                threads=group.threads,
                count=group.count,
                live=group.live,
                started=group.started,
                default=group.name == served.config.default_group,
                ready=group.ready,
                effective=group.effect.effective,
                proof=group.effect.reason,
                reason=_reason(group),
                queue_limit=group.queue_limit,
            )
            for group in served.groups()
        ],
    }


def _reason(group: GroupStatus) -> str | None:
    if group.ready:
        return None if group.effect.effective else group.effect.reason
    # What a try beside the service was told is more than that nobody has asked for the group yet.
    tried = not group.started and group.effect is not UNKNOWN_EFFECT
    return group.effect.reason if tried and not group.effect.effective else group.reason
