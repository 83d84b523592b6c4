"""What a child process is given: its limits, and of this environment how code runs, no secret."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from app.contracts.ports import Suspended
from app.contracts.resources import LIBRARY_SWITCHES
from app.engine.process.confinement import Confinement

NAMES = frozenset(
    ("PATH", "HOME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "VIRTUAL_ENV", "LD_LIBRARY_PATH",
     "LD_PRELOAD", "GLIBC_TUNABLES", "CPU_NUM", "XDG_CACHE_HOME")
)  # fmt: skip
PREFIXES = ("LC_", "PYTHON", *LIBRARY_SWITCHES)

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a child may take. `address_space` in bytes is RLIMIT_AS, set after its imports;
    `environment` is added to what `child_environment` passes on.

    With a `suspension` the child stands still while that is held, and no timeout runs on then. An
    `idle` one runs only on processors that nobody else wants. `confinement` says what it may do to
    the rest of the system. A confined child may also read `reading` and write beneath `writing`.
    Its system calls are confined before its target opens anything, unless that `starts_programs`.
    """

    address_space: int | None = None
    nice: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    suspension: Suspended | None = None
    idle: bool = False
    confinement: Confinement | None = None
    reading: Sequence[Path] = ()
    writing: Sequence[Path] = ()
    starts_programs: bool = False


def child_environment(added: Mapping[str, str]) -> dict[str, str]:
    """The listed part of the environment, and what this child is to have beside it.

    Children open hostile bytes: API keys and the service's settings (PADDLEPOOL_…) stay here.
    """
    passed = {
        name: value
        for name, value in os.environ.items()
        if name in NAMES or name.startswith(PREFIXES)
    }
    return passed | ONE_THREAD | dict(added)


def lower_limit(kind: int, most: int) -> None:
    """Set a limit of this process for good, or keep the system's hard limit where that is lower."""
    hard = resource.getrlimit(kind)[1]
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(kind, (most, most))
