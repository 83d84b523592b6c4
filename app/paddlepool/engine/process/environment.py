"""Limits of a child process, and the environment variables that it gets, without secrets."""

import os
import resource
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from paddlepool.contracts.resources import LIBRARY_SWITCHES
from paddlepool.engine.process.confinement import Confinement
from paddlepool.engine.process.suspension import Suspension

# Names, and prefixes of names, of the environment variables that a child inherits.
NAMES = frozenset(
    ("PATH", "HOME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "VIRTUAL_ENV", "LD_LIBRARY_PATH",
     "LD_PRELOAD", "GLIBC_TUNABLES", "CPU_NUM", "XDG_CACHE_HOME")
)  # fmt: skip
PREFIXES = ("LC_", "PYTHON", *LIBRARY_SWITCHES)


def malloc_settings(*settings: str) -> dict[str, str]:
    """Return the variable that sets these tunables of glibc's allocator, each `name=value`."""
    return {"GLIBC_TUNABLES": ":".join(f"glibc.malloc.{setting}" for setting in settings)}


ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a child process.

    `address_space`, in bytes, is RLIMIT_AS, set after the target is opened. `nice` is added to the
    child's niceness when it begins to serve. `environment` is passed to child_environment(). While
    a `suspension` is held, the child runs at most in short turns, and its timeouts are paused. An
    `idle` child runs only on processors that no other process needs. A child with a `confinement`
    may also read below `reading` and write below `writing`. Its system calls are confined before
    its target is opened; if `starts_programs`, only afterwards, because opening the target starts
    programs.
    """

    address_space: int | None = None
    nice: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    suspension: Suspension | None = None
    idle: bool = False
    confinement: Confinement | None = None
    reading: Sequence[Path] = ()
    writing: Sequence[Path] = ()
    starts_programs: bool = False


def child_environment(added: Mapping[str, str]) -> dict[str, str]:
    """Return a child's environment: this process's variables in NAMES or PREFIXES, and `added`.

    Children open untrusted bytes, so they get no API keys and no settings (PADDLEPOOL_…). HOME is
    always set. OMP_NUM_THREADS and OPENBLAS_NUM_THREADS are 1, whatever this process has. `added`
    overrides all of these.
    """
    passed = {
        name: value
        for name, value in os.environ.items()
        if name in NAMES or name.startswith(PREFIXES)
    }
    return {"HOME": _home()} | passed | ONE_THREAD | dict(added)


def _home() -> str:
    """Return this user's home directory, or the temporary directory if the user has none.

    Under confinement, a child cannot read /etc/passwd: Paddle crashes if it has to look there.
    """
    home = os.path.expanduser("~")  # noqa: PTH111  Path.expanduser() raises without a home
    return tempfile.gettempdir() if home == "~" else home


def lower_limit(kind: int, most: int) -> None:
    """Set both limits of `kind` (RLIMIT_…) to `most`, or to the hard limit if that is lower."""
    hard = resource.getrlimit(kind)[1]
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(kind, (most, most))
