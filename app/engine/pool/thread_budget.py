"""How many threads the predictors ask for, against the cores that this process may use."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from app.contracts.errors import ConfigError
from app.repository.config import ModelConfig

ABSURD_PER_CORE = 16
ABSURD_AT_LEAST = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadBudget:
    """Threads of the model that uses most. `cores` may be a fraction: a cgroup can grant 1.5."""

    threads: int
    cores: float

    @property
    def warning(self) -> str | None:
        """One sentence when one model's predictors will wait for each other, else None."""
        if self.threads <= math.ceil(self.cores):
            return None
        return (
            f"one model's predictors use {self.threads} threads on {self.cores:g} cores: they "
            f"will wait for each other; lower count or threads of its instance groups"
        )


def thread_budget(configs: Iterable[ModelConfig], *, cores: float) -> ThreadBudget:
    """The most that any model's groups ask for together.

    Models are counted one by one because each is sized for the whole machine: the cores are shared
    by whichever has requests. A group that starts on demand is left out: it is compared with the
    others, not served beside them.
    """
    threads = max(
        (
            sum(g.count * g.threads for g in config.instance_group if g.start == "always")
            for config in configs
        ),
        default=0,
    )
    return ThreadBudget(threads=threads, cores=cores)


def refuse_absurd(name: str, config: ModelConfig, *, cores: float) -> None:
    """Raises ConfigError when one model asks for so many threads that it must be a mistake."""
    limit = max(ABSURD_AT_LEAST, math.ceil(ABSURD_PER_CORE * cores))
    threads = thread_budget([config], cores=cores).threads
    if threads > limit:
        raise ConfigError(
            f"{name}: its instance groups ask for {threads} threads on {cores:g} cores, "
            f"limit {limit}",
            limit=limit,
            received=threads,
        )
