"""Whether the system gives this process as many descriptors as its connections may need."""

from __future__ import annotations

import resource

from app.contracts.errors import ConfigError

OWN_DESCRIPTORS = 256
"""Beside connections: pipes and memory of child processes, pictures in the making, files, and the
connections beyond the limit that are told so."""


def require_descriptors(connections: int, *, ports: int = 1) -> None:
    """Raise the limit of open files for so many connections of each port.

    Raises ConfigError where the system's hard limit is lower.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections * ports + OWN_DESCRIPTORS
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ConfigError(
            f"the limit of open files is {hard}, PADDLEPOOL_MAX_CONNECTIONS={connections} needs "
            f"{needed} (ulimit -n)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
