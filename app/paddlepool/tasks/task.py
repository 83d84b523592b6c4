"""The declaration of a task: the object `TASK` of its module, for the server and the commands."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
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

    `build` is called for each model version and raises ConfigError if the model does not fit. A
    route of `endpoints` that accepts more than PADDLEPOOL_BODY_MAX_BYTES sets `max_body_size`.
    """

    build: Callable[[ServedModelInfo, Workers], Pipeline]
    endpoints: Callable[[Settings], APIRouter]
    parts: tuple[str, ...] = ()
    """The parts of the task's models, if it uses several models in one request. Its pipelines are
    then ComposedPipelines, and `info.parts` has the model of each part."""
    optional_parts: tuple[str, ...] = ()
    """Further parts, which a model may lack."""
    settings: type[BaseModel] | None = None
    """The task's own settings, read from variables as the server's are; `/info` shows them."""
    headers: tuple[str, ...] = ()
    """The task's own reply headers. Pages from PADDLEPOOL_CORS_ORIGINS may read them."""
    card: tuple[str, ...] = ()
    """Keys of `[parameters]` in config.toml that `/info` shows for a model."""
    tensors: Callable[[Settings], TaskTensors] | None = None
    """The task as a model of the `/v2` protocol, under the task's name."""
    comparison: Callable[[ServedModelInfo], TaskComparison] | None = None
    """Sample inputs for `paddlepool compare`, and the measure of how well two outputs agree."""
    agreement: Callable[[ServedModelInfo], Callable[[Tensors, Tensors], float]] | None = None
    """The measure of `comparison` without the samples, for the API process. It returns the
    agreement of two outputs, from 0 to 1."""
    slices: Callable[[ServedModelInfo], Callable[[Tensors], Sequence[str]]] | None = None
    """Names the kind of each answer in a model's outputs, such as its label, one for each row. The
    agreement of two versions is also counted for each kind."""
    warm_ups: tuple[str, ...] = ()
    """Functions ("module:name") that each codec process runs first, as `function({}, {}, ())`, if
    the repository has a model of the task when the server starts."""
    quality: Callable[[ServedModelInfo, Source], TaskQuality | ComposedQuality] | None = None
    """Measurement for `paddlepool models verify --quality`; raises ConfigError without data."""
    origin: str = ""
    """The distribution and its version, such as `text-tagger 0.1.0`; load_tasks() sets it."""


def first_route(task: Task, settings: Settings) -> str:
    """Return the path of the task's first endpoint, for the log."""
    return str(vars(task.endpoints(settings).routes[0])["path"])


def offline(name: str) -> Callable[..., Any]:
    """Return a function that imports `name` ("module:attribute") when it is called, and calls it.

    Only commands call the returned function: the server process must not load picture decoders.
    """
    return lambda *arguments: pkgutil.resolve_name(name)(*arguments)


def load_tasks(modules: Mapping[str, str] | None = None) -> dict[str, Task]:
    """Return the declaration of each task by name.

    None means every task: PIPELINES, those of the entry points `paddlepool.tasks` and those of
    PADDLEPOOL_TASKS. Raises ConfigError if two have the same name or one cannot be loaded.
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
    """Return the model's task; None for a model without one.

    Raises ConfigError if no such task exists, or if the model has other parts than the task
    declares.
    """
    if info.pipeline is None:
        return None
    tasks = load_tasks() if tasks is None else tasks
    if info.pipeline not in tasks:
        raise ConfigError(
            f"{info.name}: pipeline is {info.pipeline!r}, there are {', '.join(tasks)}; is the "
            "package with this task installed?"
        )
    task = tasks[info.pipeline]
    parts = set(info.parts) - set(task.optional_parts)
    if set(task.parts) != parts:
        raise ConfigError(
            f"{info.name}: the parts of the task {info.pipeline} are "
            f"{', '.join(task.parts) or 'none'}, config.toml has {', '.join(info.parts) or 'none'}"
        )
    return task


def agreement_of(
    info: ServedModelInfo, *, tasks: Mapping[str, Task] | None = None
) -> Callable[[Tensors, Tensors], float] | None:
    """Return the agreement measure of the model's task; None without a measure.

    A model without a task has one if its inference.yml describes a text detector or recogniser.
    Raises ConfigError as task_of() does, or if the model does not fit the task.
    """
    task = task_of(info, tasks)
    if task is None:
        return part_agreement(info)
    return None if task.agreement is None else task.agreement(info)


def slices_of(
    info: ServedModelInfo, *, tasks: Mapping[str, Task] | None = None
) -> Callable[[Tensors], Sequence[str]] | None:
    """Return the function of the model's task that names each answer's kind; None without one.

    Raises ConfigError as task_of() does, or if the model does not fit the task.
    """
    task = task_of(info, tasks)
    return None if task is None or task.slices is None else task.slices(info)


def comparison_of(info: ServedModelInfo) -> TaskComparison | None:
    """Return the comparison of the model's task; None without one.

    A model without a task has one if its inference.yml describes a text detector or recogniser.
    Raises ConfigError as agreement_of() does.
    """
    task = task_of(info)
    if task is None:
        # Imported late: it loads picture decoders.
        comparison = offline("paddlepool.tasks.transforms.comparison:PartComparison")
        return None if part_config(info) is None else comparison(info)
    return None if task.comparison is None else task.comparison(info)
