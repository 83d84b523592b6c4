"""The process around the application: its socket, client deadlines, signals and shutdown."""

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from types import FrameType
from typing import NoReturn

import uvicorn
from fastapi import FastAPI

from app.service.api.services import Services
from app.service.server.connection_limits import protocol_class
from app.service.server.system import notify

EXIT_FORCED = 1
log = logging.getLogger("paddlepool.server")


class PoolServer(uvicorn.Server):
    """uvicorn with a drain: the first signal starts the drain, a second signal ends the process.

    Exit codes: 0 after a drain, 1 after a second signal.
    """

    def __init__(self, config: uvicorn.Config, services: Services) -> None:
        super().__init__(config)
        self._services = services
        self._stop_at: float | None = None
        self._stopping_logged = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Start the drain. Runs in a signal handler, so it sets plain values and takes no lock.

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
        """Close the other interfaces while HTTP drains; all have the same timeout."""
        notify("STOPPING=1")  # watchdog messages end here
        closing = asyncio.ensure_future(self._services.lifecycle.close_others())
        await super().shutdown(sockets)
        if self.force_exit:
            log.warning("stopped by a second signal")
            _end(EXIT_FORCED)  # a cancelled lifespan would log a traceback
        closing.cancel()  # the lifespan has already awaited the same closers


def bind(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """Bind a TCP socket; if `shared`, to a port that sockets of other processes may share.

    Raises OSError if the address is taken or does not belong to this machine.
    """
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
    """Serve until a signal, then end the process: code 0 after a drain, 1 if forced."""
    services: Services = app.state.paddlepool
    settings = services.settings
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http=protocol_class(settings, reply_bytes=app.state.gates.bodies.limit),
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
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
