"""The service manager that started the server, such as systemd: passed socket, notifications."""

from __future__ import annotations

import contextlib
import os
import socket

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
