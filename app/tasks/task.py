"""The declaration of a task: one `TASK`, used by everything that serves tasks."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from app.contracts.errors import ConfigError
from app.settings.server import Settings, settings_with

if TYPE_CHECKING:
    from fastapi import APIRouter
    from pydantic import BaseModel

    from app.contracts.ports import Pipeline, ServedModelInfo
    from app.contracts.task_tensors import TaskTensors
    from app.contracts.tensors import Tensors
    from app.evidence.comparison.tasks import TaskComparison
    from app.evidence.quality.ports import Source, TaskQuality
    from app.tasks.workers import Workers


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Everything the server knows of one task.

    `build` is called once for each model version and raises ConfigError where the model does not
    fit. `endpoints` is called once at start; a route whose body may be larger than
    PADDLEPOOL_BODY_MAX_BYTES says so as `max_body_size`, in bytes.
    """

    build: Callable[[ServedModelInfo, Workers], Pipeline]
    endpoints: Callable[[Settings], APIRouter]
    settings: type[BaseModel] | None = None
    """The task's own settings: read with the server's, under the same prefix, and shown in /info
    under `limits`. No other may have a field of the same name; `Settings.of` hands them out."""
    headers: tuple[str, ...] = ()
    """Its own reply headers: pages of PADDLEPOOL_CORS_ORIGINS may read them."""
    card: tuple[str, ...] = ()
    """Names of `[parameters]` in config.toml that /info shows of a model."""
    tensors: Callable[[Settings], TaskTensors] | None = None
    """The task as a model of tensors, under its own name below /v2."""
    comparison: Callable[[ServedModelInfo], TaskComparison] | None = None
    """Inputs for `paddlepool compare` and a measure of agreement."""
    agreement: Callable[[ServedModelInfo], Callable[[Tensors, Tensors], float]] | None = None
    """The measure alone, for the API process: agreement of two outputs, from 0 to 1."""
    warm_ups: tuple[str, ...] = ()
    """Functions ("module:name") that each codec process runs once, as `function({}, {}, ())`,
    before a model of this task is served."""
    quality: Callable[[ServedModelInfo, Source], TaskQuality] | None = None
    """Measurement for `paddlepool models verify --quality`; raises ConfigError without data."""


def first_route(task: Task, settings: Settings) -> str:
    """The path at which the log says that the task's models answer."""
    return str(vars(task.endpoints(settings).routes[0])["path"])


def offline(name: str) -> Callable[..., Any]:
    """The callable `module:attribute`, imported when it is called: by commands, not by the server,
    whose process must not load what opens pictures."""

    def call(*arguments: Any) -> Any:
        module, _, attribute = name.partition(":")
        return getattr(importlib.import_module(module), attribute)(*arguments)

    return call


def load_tasks(pipelines: Mapping[str, str]) -> dict[str, Task]:
    """The declaration of each task, by its name; `pipelines` names the modules."""
    return {name: importlib.import_module(module).TASK for name, module in pipelines.items()}


def settings_class(tasks: Iterable[Task]) -> type[Settings]:
    """The server's settings and those of these tasks in one model."""
    return settings_with(*(task.settings for task in tasks if task.settings is not None))


def task_of(info: ServedModelInfo, tasks: Mapping[str, Task]) -> Task | None:
    """The task of a model; most have none. Raises ConfigError when there is none of that name."""
    if info.pipeline is None:
        return None
    if info.pipeline not in tasks:
        raise ConfigError(
            f"{info.name}: pipeline is {info.pipeline!r}, there are {', '.join(tasks)}",
            received=info.pipeline,
        )
    return tasks[info.pipeline]


def build_pipeline(
    info: ServedModelInfo, *, tasks: Mapping[str, Task], workers: Workers
) -> Pipeline | None:
    """The pipeline that a model's config.toml names. Raises ConfigError where it cannot be."""
    task = task_of(info, tasks)
    return None if task is None else task.build(info, workers)


def agreement_of(
    info: ServedModelInfo, *, tasks: Mapping[str, Task]
) -> Callable[[Tensors, Tensors], float] | None:
    """The measure of the model's task; None for a model without a task or a task without one."""
    task = task_of(info, tasks)
    return None if task is None or task.agreement is None else task.agreement(info)


def comparison_of(info: ServedModelInfo, *, tasks: Mapping[str, Task]) -> TaskComparison | None:
    """The comparison of the model's task; None as agreement_of()."""
    task = task_of(info, tasks)
    return None if task is None or task.comparison is None else task.comparison(info)
