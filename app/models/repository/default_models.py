"""Which model answers a task when a request names none."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Mapping

from app.contracts.errors import ConfigError, PaddlepoolError
from app.models.repository.config import ModelConfig
from app.models.repository.layout import ModelRepository

VARIABLE = "PADDLEPOOL_DEFAULT_MODELS"

log = logging.getLogger("paddlepool.server")


def read_configs(repository: ModelRepository) -> dict[str, ModelConfig]:
    """The configuration of every model that has a valid one; the registry reports the others."""
    configs = {}
    for name in repository.names():
        with contextlib.suppress(PaddlepoolError):
            configs[name] = repository.config(name)
    return configs


def find_default_models(
    configs: Mapping[str, ModelConfig], tasks: Iterable[str], *, chosen: Mapping[str, str]
) -> dict[str, str]:
    """The default model of each task.

    That is the model that `chosen` names, else the one with `default = true`, else the first by
    name. It need not load: a damaged model must not pass its task to another one. Raises
    ConfigError if `chosen` names an unknown task. An unknown model is only logged, because it may
    be published later.
    """
    known = sorted(tasks)
    for task, model in chosen.items():
        if task not in known:
            raise ConfigError(
                f"{VARIABLE}: there is no task {task!r}, there are {', '.join(known)}",
                limit=", ".join(known),
                received=task,
            )
        if model not in configs or configs[model].pipeline != task:
            log.warning(
                "%s: the repository has no model %r for the task %s yet", VARIABLE, model, task
            )
    found = {task: _first(configs, task) for task in known if task not in chosen}
    return {task: model for task, model in found.items() if model is not None} | {**chosen}


def _first(configs: Mapping[str, ModelConfig], task: str) -> str | None:
    names = [name for name in sorted(configs) if configs[name].pipeline == task]
    marked = [name for name in names if configs[name].default]
    candidates = marked or names
    if len(candidates) > 1:
        log.warning(
            "%s models of the task %s %s; %r answers requests that name none",
            len(candidates),
            task,
            "have default = true" if marked else "and none has default = true",
            candidates[0],
        )
    return candidates[0] if candidates else None
