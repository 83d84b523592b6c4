"""How many threads the predictors of one model use, compared with the cores of the machine."""

import math
from collections.abc import Collection
from dataclasses import dataclass

from paddlepool.contracts.errors import ConfigError
from paddlepool.models.repository.config import ModelConfig

MAX_THREADS_PER_CORE = 16
MIN_THREADS_LIMIT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadBudget:
    """The threads of the model that uses most, and the available cores, which may be fractional."""

    threads: int
    cores: float

    @property
    def warning(self) -> str | None:
        """A sentence for the log if the model uses more threads than there are cores, else None."""
        if self.threads <= math.ceil(self.cores):
            return None
        return (
            f"one model's predictors use {self.threads} threads on {self.cores:g} cores: they "
            f"will wait for each other; lower count or threads of its instance groups"
        )


def thread_budget(configs: Collection[ModelConfig], *, cores: float) -> ThreadBudget:
    """Return the ThreadBudget of the model whose groups together use the most threads.

    Threads of different models are not added up: each model is sized for the whole machine, and the
    models that have requests at the same time share the cores. Groups that start on demand do not
    count, because they exist for comparison; an exception is the default group. See
    ModelConfig.threads().
    """
    threads = max((config.threads() for config in configs), default=0)
    return ThreadBudget(threads=threads, cores=cores)


def check_threads(name: str, config: ModelConfig, *, cores: float) -> None:
    """Raise ConfigError if a model uses more than MAX_THREADS_PER_CORE threads for each core.

    MIN_THREADS_LIMIT threads are always allowed.
    """
    limit = max(MIN_THREADS_LIMIT, math.ceil(MAX_THREADS_PER_CORE * cores))
    if (threads := config.threads()) > limit:
        raise ConfigError(
            f"{name}: its instance groups ask for {threads} threads on {cores:g} cores, "
            f"limit {limit}"
        )
