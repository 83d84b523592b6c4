"""Interfaces to the system: service manager, resource limits, the event loop's lag."""

import asyncio
import contextlib
import os
import resource
import socket
import time
from collections.abc import Callable

from app.contracts.errors import ConfigError

FIRST_PASSED = 3
"""The descriptor of the first passed socket; see sd_listen_fds(3)."""


def passed_listener() -> socket.socket | None:
    """Return the listening socket that was passed to this process, or None.

    Raises ConfigError unless exactly one TCP socket was passed.
    """
    count = os.environ.get("LISTEN_FDS")
    if count is None or os.environ.get("LISTEN_PID") != str(os.getpid()):
        return None
    listener = socket.socket(fileno=FIRST_PASSED)
    if count != "1" or listener.family not in (socket.AF_INET, socket.AF_INET6):
        listener.close()
        raise ConfigError("one listening TCP socket must be passed (ListenStream=), and no other")
    listener.set_inheritable(False)
    return listener


def notify(state: str) -> None:
    """Send an sd_notify(3) message to the service manager, if there is one."""
    if address := os.environ.get("NOTIFY_SOCKET"):
        # A manager that has exited or does not read must not block the event loop.
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender,
        ):
            abstract = address.startswith("@")
            sender.sendto(state.encode(), f"\0{address[1:]}" if abstract else address)


OWN_DESCRIPTORS = 256
"""Descriptors besides connections: pipes and memory files of child processes, pictures in progress,
files, and connections beyond the limit that get a 503."""
LEAST_ADDRESS_SPACE = 1_280 << 20
"""Lowest limit in bytes: a process with Paddle Inference maps 1,210 MiB before it loads a model."""
LEAST_FILE_SIZE = 64 << 20
"""Lowest limit in bytes. The limit of the file size also applies to the memory files that carry
pictures and tensors between processes."""


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


INTERVAL_SECONDS = 0.1


async def watch_loop(observe: Callable[[float], None]) -> None:
    """Pass the loop's lag in seconds to `observe` at every interval. Never returns."""
    while True:
        due = time.perf_counter() + INTERVAL_SECONDS
        await asyncio.sleep(INTERVAL_SECONDS)
        observe(max(0.0, time.perf_counter() - due))
