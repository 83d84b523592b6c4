"""Declarations of tasks: the type `Task`, and how the server and the commands load and use them."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from paddlepool.contracts.errors import ConfigError
from paddlepool.settings.server import PREFIX, Settings, read_plugin_settings, settings_with
from paddlepool.tasks import PIPELINES
from paddlepool.tasks.plugins import OWN, Declaration, declarations, load_declared
from paddlepool.tasks.transforms.agreement import part_agreement, part_config

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from fastapi import APIRouter
    from pydantic import BaseModel

    from paddlepool.contracts.ports import Pipeline, ServedModelInfo
    from paddlepool.contracts.tensors import TaskTensors, Tensors
    from paddlepool.evidence.comparison.measure import TaskComparison
    from paddlepool.evidence.quality.ports import ComposedQuality, Source, TaskQuality
    from paddlepool.tasks.codecs.pool import Codecs


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """The executors that all pipelines share: codec processes, and threads that tokenise texts."""

    codec: Codecs
    text: ThreadPoolExecutor

    async def close(self) -> None:
        await self.codec.pool.close()
        self.text.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Everything the server knows about one task.

    `build` makes the pipeline of a model version, and raises ConfigError if the model does not fit
    the task. `endpoints` makes the router with the task's routes. A route that accepts bodies of
    more than PADDLEPOOL_BODY_MAX_BYTES sets `max_body_size`.
    """

    build: Callable[[ServedModelInfo, Workers], Pipeline]
    endpoints: Callable[[Settings], APIRouter]
    parts: tuple[str, ...] = ()
    """Names of the parts, if a request to the task uses several models. Each pipeline of the task
    is then a ComposedPipeline, and `parts` of a ServedModelInfo has the model of each part."""
    optional_parts: tuple[str, ...] = ()
    """Names of further parts, which a composed model may lack."""
    settings: type[BaseModel] | None = None
    """The task's own settings. They are read from environment variables, as the server's are, and
    shown by `/info`."""
    headers: tuple[str, ...] = ()
    """The task's own reply headers. Pages from PADDLEPOOL_CORS_ORIGINS may read them."""
    card: tuple[str, ...] = ()
    """Keys of `[parameters]` in config.toml that `/info` shows for a model."""
    tensors: Callable[[Settings], TaskTensors] | None = None
    """Returns the description of the task as a model of the `/v2` protocol, which is served there
    under the task's name."""
    comparison: Callable[[ServedModelInfo], TaskComparison] | None = None
    """Returns sample inputs of a model for `paddlepool compare`, together with a measure of how
    well two outputs agree."""
    agreement: Callable[[ServedModelInfo], Callable[[Any, Any], float]] | None = None
    """Returns the measure of `comparison` alone, for the API process: a function that returns the
    agreement of two outputs of a model, from 0 to 1. For a composed model, it gets two answers, as
    `answer_of` of the pipeline returns them."""
    slices: Callable[[ServedModelInfo], Callable[[Tensors], Sequence[str]]] | None = None
    """Returns a function that names the kind of each row of a model's outputs, such as its label.
    The agreement of two versions is also counted for each kind."""
    warm_ups: tuple[str, ...] = ()
    """Functions ("module:name") that each codec process runs first, as `function({}, {}, ())`, if
    the repository has a model of the task when the server starts."""
    quality: Callable[[ServedModelInfo, Source], TaskQuality | ComposedQuality | None] | None = None
    """Returns the measurement of a model's quality for `paddlepool models verify --quality`, or
    None for a model that has none. Raises ConfigError if its data are missing."""
    origin: str = ""
    """The distribution and its version, such as `text-tagger 0.1.0`, or the environment variable
    that names the module. load_tasks() sets it."""


def first_route(task: Task, settings: Settings) -> str:
    """Return the path of the task's first endpoint."""
    return str(vars(task.endpoints(settings).routes[0])["path"])


def offline(name: str) -> Callable[..., Any]:
    """Return a function that calls `name` ("module:attribute") and imports it only then.

    Only commands call the returned function: the server process must not load picture decoders.
    """
    return lambda *arguments: pkgutil.resolve_name(name)(*arguments)


def load_tasks(modules: Mapping[str, str] | None = None) -> dict[str, Task]:
    """Import the modules of tasks and return the declaration of each task by name.

    `modules` has the module of each task by name. None means every task: those of PIPELINES, of the
    entry points `paddlepool.tasks` and of PADDLEPOOL_TASKS. Raises ConfigError if this setting is
    invalid, if a name stands for two different modules, or if a task cannot be loaded.
    """
    if modules is None:
        declared = declarations(
            "paddlepool.tasks",
            own=PIPELINES,
            configured=read_plugin_settings().tasks,
            variable=f"{PREFIX}TASKS",
        )
    else:
        declared = [Declaration(name, module, OWN) for name, module in modules.items()]
    return {
        declaration.name: replace(
            load_declared(declaration, "TASK", Task), origin=declaration.origin
        )
        for declaration in declared
    }


def settings_class(tasks: Iterable[Task]) -> type[Settings]:
    return settings_with(*(task.settings for task in tasks if task.settings is not None))


def task_of(info: ServedModelInfo, tasks: Mapping[str, Task] | None = None) -> Task | None:
    """Return the task that config.toml names as the model's `pipeline`; None if it names none.

    `tasks` defaults to load_tasks(). Raises the errors of named_task().
    """
    return named_task(info.name, info.pipeline, info.parts, tasks)


def named_task(
    model: str,
    pipeline: str | None,
    parts: Collection[str],
    tasks: Mapping[str, Task] | None = None,
) -> Task | None:
    """Return the task `pipeline` of a model that has these `parts`; None if `pipeline` is None.

    `tasks` defaults to load_tasks(). Raises ConfigError as load_tasks() does, if there is no such
    task, or if the model lacks a part that is not optional or has one that the task does not
    declare.
    """
    if pipeline is None:
        return None
    tasks = load_tasks() if tasks is None else tasks
    if pipeline not in tasks:
        raise ConfigError(
            f"{model}: pipeline is {pipeline!r}, there are {', '.join(tasks)}; is the "
            "package with this task installed?"
        )
    task = tasks[pipeline]
    if set(task.parts) != set(parts) - set(task.optional_parts):
        raise ConfigError(
            f"{model}: the parts of the task {pipeline} are "
            f"{', '.join(task.parts) or 'none'}, config.toml has {', '.join(parts) or 'none'}"
        )
    return task


def agreement_of(
    info: ServedModelInfo, *, tasks: Mapping[str, Task] | None = None
) -> Callable[[Tensors, Tensors], float] | None:
    """Return the function that measures how well two outputs of a model agree, from 0 to 1.

    The model's task defines it. For a model without a task, part_agreement() does. Returns None if
    there is no such function. Raises ConfigError as task_of() does, or if the model does not fit
    the task.
    """
    task = task_of(info, tasks)
    if task is None:
        return part_agreement(info)
    return None if task.agreement is None else task.agreement(info)


def slices_of(
    info: ServedModelInfo, *, tasks: Mapping[str, Task] | None = None
) -> Callable[[Tensors], Sequence[str]] | None:
    """Return the function that names the kind of each row of a model's outputs; see Task.slices.

    Returns None if the model has no task or its task has no such function. Raises ConfigError as
    task_of() does, or if the model does not fit the task.
    """
    task = task_of(info, tasks)
    return None if task is None or task.slices is None else task.slices(info)


def comparison_of(info: ServedModelInfo) -> TaskComparison | None:
    """Return how `paddlepool compare` measures a model: samples, and a measure of agreement.

    The model's task defines it. Without a task, a text detector or recogniser has PartComparison.
    Returns None for any other model without a task, and if the task has no comparison. Raises
    ConfigError as agreement_of() does.
    """
    task = task_of(info)
    if task is None:
        # Imported late: it loads picture decoders.
        comparison = offline("paddlepool.tasks.transforms.comparison:PartComparison")
        return None if part_config(info) is None else comparison(info)
    return None if task.comparison is None else task.comparison(info)
