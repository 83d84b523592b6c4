"""The server process around the application: its socket, limits, signals and shutdown."""

import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

import uvicorn
from fastapi import FastAPI

from paddlepool.contracts.errors import ConfigError
from paddlepool.service.api.services import Services
from paddlepool.service.server.connection_limits import protocol_class

EXIT_FORCED = 1
FIRST_PASSED = 3
"""The descriptor of the first passed socket; see sd_listen_fds(3)."""
log = logging.getLogger("paddlepool.server")


def passed_listener() -> socket.socket | None:
    """Return the TCP socket that the service manager passed, or None if it passed none.

    Child processes do not inherit the socket. Raises ConfigError for a socket of another kind, and
    for several; OSError if the descriptor is no socket.
    """
    count = os.environ.get("LISTEN_FDS")
    if count is None or os.environ.get("LISTEN_PID") != str(os.getpid()):
        return None
    listener = socket.socket(fileno=FIRST_PASSED)
    is_tcp = listener.family in (socket.AF_INET, socket.AF_INET6) and (
        listener.type == socket.SOCK_STREAM
    )
    if count != "1" or not is_tcp:
        listener.close()
        raise ConfigError("one listening TCP socket must be passed (ListenStream=), and no other")
    listener.set_inheritable(False)
    return listener


def notify(state: str) -> None:
    """Send an sd_notify(3) message to the service manager, if there is one; ignore errors."""
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
"""Lowest accepted limit of the address space, in bytes: a process with Paddle Inference maps
1,210 MiB before it loads a model."""
LEAST_FILE_SIZE = 64 << 20
"""Lowest accepted limit of the file size, in bytes: it also applies to the memory files that carry
pictures and tensors between processes."""


def require_room_for_children() -> None:
    """Raise ConfigError if the limit of address space or file size lets no child process start."""
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
    """Allow enough open files for this number of `connections` on each of `ports` ports.

    Increases the soft limit if it is too low. Raises ConfigError if the hard limit is too low, too.
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
    """Pass the seconds by which the loop wakes up late to `observe`, at every interval, forever."""
    while True:
        due = time.perf_counter() + INTERVAL_SECONDS
        await asyncio.sleep(INTERVAL_SECONDS)
        observe(max(0.0, time.perf_counter() - due))


class PoolServer(uvicorn.Server):
    """A uvicorn server that drains at the first signal, and ends the process at a second one.

    A SIGHUP after the first signal is ignored.
    """

    # uvicorn documents `run` and `serve`, but none of the methods below, and has no setting for a
    # drain delay. If they change, the first test to fail is
    # test_a_signal_drains_the_server_and_is_not_raised_again.

    def __init__(self, config: uvicorn.Config, services: Services) -> None:
        super().__init__(config)
        self._services = services
        self._stop_at: float | None = None
        self._stopping_logged = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Start the drain; force the exit at a second signal other than SIGHUP.

        There is no drain delay after SIGINT, and none while the server accepts no connections yet
        because models are being loaded (Lifecycle.accepts_when_ready). Runs in a signal handler, so
        it sets plain values and takes no lock.

        uvicorn's own method stores the signal and raises it again after the shutdown. This one does
        not, so a drained server exits with 0.
        """
        del frame
        if self._stop_at is not None:
            # A closing terminal sends SIGHUP twice: through its shell, and when the shell ends.
            if sig != signal.SIGHUP:
                self.force_exit = self.should_exit = True
            return
        lifecycle = self._services.lifecycle
        lifecycle.draining = True
        # No load balancer routes traffic to a server in a terminal, or to one that waits for its
        # models before it accepts connections.
        waits = lifecycle.accepts_when_ready and not self.started
        at_once = sig == signal.SIGINT or waits
        delay = 0.0 if at_once else self._services.settings.drain_delay_seconds
        self._stop_at = time.monotonic() + delay

    async def on_tick(self, counter: int) -> bool:
        if counter % 10 == 0:  # every second
            notify("READY=1\nWATCHDOG=1" if self._services.registry.ready() else "WATCHDOG=1")
        if self._stop_at is not None:
            left = self._stop_at - time.monotonic()
            if not self._stopping_logged:
                self._stopping_logged = True
                log.info("stopping; requests are accepted for %.1f s more", max(0.0, left))
            self.should_exit |= left <= 0
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the other interfaces while HTTP drains; all have the same timeout.

        Ends the process with EXIT_FORCED if a second signal has arrived.
        """
        notify("STOPPING=1")  # watchdog messages end here
        closing = asyncio.ensure_future(self._services.lifecycle.close_others())
        await super().shutdown(sockets)
        if self.force_exit:
            log.warning("stopped by a second signal")
            _end(EXIT_FORCED)  # a cancelled lifespan would log a traceback
        closing.cancel()  # the lifespan has already awaited the same closers


def bind(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """Bind a TCP socket; if `shared`, to a port that other processes may share. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, shared)
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound


def run(app: FastAPI, *, listener: socket.socket) -> NoReturn:
    """Serve until a signal, then end the process: code 0 after a drain, 1 after a second signal.

    If the application cannot start, uvicorn logs the error and exits with 3.
    """
    services: Services = app.state.paddlepool
    settings = services.settings
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http=protocol_class(
            settings,
            reply_bytes=app.state.gates.bodies.limit,
            refused=services.metrics.connection_refused,
        ),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=settings.backlog,
        timeout_keep_alive=settings.keep_alive_seconds,  # type: ignore[arg-type]  # a float is fine
        timeout_graceful_shutdown=settings.drain_timeout_seconds,  # type: ignore[arg-type]
    )
    server = PoolServer(config, services)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # `nohup` ignores it
        signal.signal(signal.SIGHUP, server.handle_exit)  # from a closing terminal
    host, port = listener.getsockname()[:2]
    host = f"[{host}]" if ":" in host else host
    log.info("listening", extra={"url": f"http://{host}:{port}", "pid": os.getpid()})
    server.run(sockets=[listener])
    log.info("stopped")
    _end(0)


def _end(code: int) -> NoReturn:
    """End the process without waiting for threads: one may still be loading a model.

    Child processes end when our end of their pipe closes.
    """
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # such as a full disk
            stream.flush()
    os._exit(code)
