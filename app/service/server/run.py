"""The process around the application: its socket, client deadlines, signals and shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from types import FrameType
from typing import NoReturn

import uvicorn
from starlette.types import ASGIApp

from app.service.server.connection_limits import ProtocolLimits, protocol_class
from app.service.server.system import notify
from app.settings.server import Settings

EXIT_FORCED = 1
log = logging.getLogger("paddlepool.server")


class PoolServer(uvicorn.Server):
    """uvicorn with a drain: the first signal starts the drain, a second signal ends the process.

    Exit codes: 0 after a drain, 1 after a second signal.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        on_drain: Callable[[], None],
        drain_delay: float,
        close_doors: Callable[[], Awaitable[None]],
        ready: Callable[[], bool],
    ) -> None:
        super().__init__(config)
        self._ready = ready
        self._on_drain = on_drain
        self._drain_delay = drain_delay
        self._close_doors = close_doors
        self._stop_at: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Start the drain. Runs in a signal handler, so it sets plain values and takes no lock."""
        del frame
        if self._stop_at is not None:
            # A closing terminal sends SIGHUP twice: through its shell, and when the shell ends.
            if sig != signal.SIGHUP:
                self.force_exit = self.should_exit = True
            return
        self._on_drain()
        # No load balancer routes traffic to a server in a terminal, so Ctrl+C needs no drain delay.
        delay = 0.0 if sig == signal.SIGINT else self._drain_delay
        self._stop_at = time.monotonic() + delay

    async def on_tick(self, counter: int) -> bool:
        if counter % 10 == 0:  # every second
            notify("READY=1\nWATCHDOG=1" if self._ready() else "WATCHDOG=1")
        if self._stop_at is not None and time.monotonic() >= self._stop_at:
            self.should_exit = True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the other doors while HTTP drains; all have the same timeout."""
        notify("STOPPING=1")  # watchdog messages end here
        closing = asyncio.ensure_future(self._close_doors())
        await super().shutdown(sockets)
        if self.force_exit:
            log.warning("stopped by a second signal")
            _end(EXIT_FORCED)  # a cancelled lifespan would log a traceback
        closing.cancel()  # the lifespan has already awaited them

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Like uvicorn's method, but exit with 0 after a drain instead of re-raising the signal."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {sig: signal.signal(sig, self.handle_exit) for sig in _drain_signals()}
        try:
            yield
        finally:
            for sig, handler in before.items():
                signal.signal(sig, handler)


def _drain_signals() -> list[signal.Signals]:
    """Signals that start the drain, with SIGHUP (the terminal closed) unless `nohup` ignores it."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([] if ignored else [signal.SIGHUP])]


def listen(host: str, port: int, *, backlog: int) -> socket.socket:
    """Open the listening socket; from now on the system queues connections for us.

    Raises OSError if the address is taken or does not belong to this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(backlog)
    except OSError:
        listener.close()
        raise
    return listener


def run(
    app: ASGIApp,
    settings: Settings,
    *,
    listener: socket.socket,
    reply_bytes: int,
    on_drain: Callable[[], None],
    close_doors: Callable[[], Awaitable[None]],
    ready: Callable[[], bool],
) -> NoReturn:
    """Serve until a signal, then end the process: code 0 after a drain, 1 if forced.

    `reply_bytes` is the maximum of all unread replies. `close_doors` closes the doors other than
    HTTP. `ready` tells whether to report readiness to the service manager.
    """
    limits = ProtocolLimits(
        header_seconds=settings.header_timeout_seconds,
        header_bytes=settings.header_max_bytes,
        receive_seconds=settings.receive_timeout_seconds,
        send_stall_seconds=settings.send_stall_seconds,
        connections=settings.max_connections,
        reply_bytes=reply_bytes,
    )
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http=protocol_class(limits),
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
    server = PoolServer(
        config,
        on_drain=on_drain,
        drain_delay=settings.drain_delay_seconds,
        close_doors=close_doors,
        ready=ready,
    )
    host, port = listener.getsockname()[:2]
    log.info("listening", extra={"url": f"http://{_url_host(host)}:{port}", "pid": os.getpid()})
    server.run(sockets=[listener])
    log.info("stopped")
    _end(0)


def _url_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _end(code: int) -> NoReturn:
    """End the process without waiting for threads: one may still be loading a model.

    Child processes end when our end of their pipe closes.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
