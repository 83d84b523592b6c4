"""Whether the system gives this process as many descriptors as its connections may need."""

from __future__ import annotations

import logging
import resource

from app.contracts.errors import ConfigError

OWN_DESCRIPTORS = 256
"""Beside connections: pipes and memory of child processes, pictures in the making, files, and the
connections beyond the limit that are told so."""

log = logging.getLogger("paddlepool.server")


def affordable_connections(wanted: int, *, ports: int = 1) -> int:
    """As many of the `wanted` connections as there are descriptors for, of each of so many ports;
    says so where it is fewer.

    Takes as many as the hard limit allows. Raises ConfigError where not one connection is left.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted * ports + OWN_DESCRIPTORS
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if allowed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    connections = (max(allowed, soft) - OWN_DESCRIPTORS) // ports
    if connections < 1:
        raise ConfigError(
            f"the limit of open files is {hard}, at least {OWN_DESCRIPTORS + ports} are needed "
            f"(ulimit -n), and {needed} for PADDLEPOOL_MAX_CONNECTIONS={wanted}"
        )
    if connections < wanted:
        log.warning(
            "PADDLEPOOL_MAX_CONNECTIONS is %d, but the limit of open files is %d: taking %d "
            "connections at most; raise the limit (ulimit -n) to %d for all of them",
            wanted,
            hard,
            connections,
            needed,
        )
    return connections
