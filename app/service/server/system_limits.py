"""Check at the start that the system's limits allow the connections and child processes."""

from __future__ import annotations

import resource

from app.contracts.errors import ConfigError

OWN_DESCRIPTORS = 256
"""Descriptors besides connections: pipes and memory files of child processes, pictures in progress,
files, and connections beyond the limit that get a 503."""
LEAST_ADDRESS_SPACE = 1_280 << 20
"""Bytes. A process with Paddle Inference maps 1,210 MiB before it loads a model."""
LEAST_FILE_SIZE = 64 << 20
"""Bytes. The limit also applies to the memory files that pass pictures and tensors."""


def require_room_for_children() -> None:
    """Raise ConfigError if the limits are too low for any child process to start."""
    for kind, name, flag, least in (
        (resource.RLIMIT_AS, "address space", "-v", LEAST_ADDRESS_SPACE),
        (resource.RLIMIT_FSIZE, "file size", "-f", LEAST_FILE_SIZE),
    ):
        limit = resource.getrlimit(kind)[0]
        if limit != resource.RLIM_INFINITY and limit < least:
            raise ConfigError(
                f"the limit of {name} is {limit >> 10} KiB, child processes need "
                f"{least >> 10} KiB (ulimit {flag})"
            )


def require_descriptors(connections: int, *, ports: int = 1) -> None:
    """Raise the limit of open files to allow `connections` on each of `ports`.

    Raises ConfigError if the hard limit is lower.
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
