"""The service manager that started the server, as systemd is: a socket from it, notices to it."""

from __future__ import annotations

import contextlib
import os
import socket

from app.contracts.errors import ConfigError

FIRST_PASSED = 3
"""The descriptor of the first socket that is passed, by sd_listen_fds(3)."""


def passed_listener() -> socket.socket | None:
    """Return the listening socket that was passed to this process, if one was.

    Raises ConfigError where it is not one TCP socket.
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
    """Send a notice of sd_notify(3) to the service manager, where there is one."""
    if address := os.environ.get("NOTIFY_SOCKET"):
        # A manager that is gone or does not read must not hold up the event loop.
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender,
        ):
            abstract = address.startswith("@")
            sender.sendto(state.encode(), f"\0{address[1:]}" if abstract else address)
