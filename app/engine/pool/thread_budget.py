"""How many threads the predictors ask for, against the cores that this process may use."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

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


def available_cores(cgroup: Path = Path("/sys/fs/cgroup")) -> float:
    """Cores this process may use: its CPU affinity, and the quota of its control group (v2, v1)."""
    cores = float(len(os.sched_getaffinity(0)))
    return min(cores, *_quotas(cgroup), cores)


def _quotas(cgroup: Path) -> Iterable[float]:
    for quota_file, period_file in (
        ("cpu.max", None),
        ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"),
    ):
        try:
            words = (cgroup / quota_file).read_text("ascii").split()
            if period_file is not None:
                words += (cgroup / period_file).read_text("ascii").split()
            quota, period = float(words[0]), float(words[1])
        except (OSError, ValueError, IndexError):
            continue  # not there, or "max": no quota
        if quota > 0 and period > 0:
            yield quota / period
