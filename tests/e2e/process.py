"""A real server process on a free port, and raw connections to it."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import httpx

from tests.ran import ROOT
from tests.ran import wait_until as wait_until

PATIENCE = 120.0
"""Seconds after which a server that has not done what a test waits for counts as hung."""

GATED = """
default_group = "gated"
[[instance_group]]
name = "gated"
backend = "gated"
options = {{ gate = "{gate}" }}
"""
"""A config.toml whose predictor opens when the file `gate` is there."""

AS_SYSTEMD = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_FDS="1", LISTEN_PID=str(os.getpid()))
os.execv(sys.argv[2], sys.argv[2:])
"""


class Server:
    """One `paddlepool serve`; `log()` are the JSON lines it has written so far."""

    def __init__(self, process: subprocess.Popen[bytes], log_file: Path) -> None:
        self.process = process
        self._log_file = log_file
        self.port = int(self.wait_logged(event="listening")["url"].rpartition(":")[2])
        self.url = f"http://127.0.0.1:{self.port}"

    def log(self) -> list[dict[str, Any]]:
        lines = self.text().split("\n")[:-1]  # the last has not ended yet
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def text(self) -> str:
        return self._log_file.read_text("utf-8", errors="replace")

    def wait_logged(self, **members: Any) -> dict[str, Any]:
        """Wait for a line with these members in the log, and return the first."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            ended = self.process.poll() is not None
            for line in self.log():
                if members.items() <= line.items():
                    return line
            assert not ended, f"the server ended:\n{self.text()}"
            time.sleep(0.02)
        raise AssertionError(f"no line with {members}:\n{self.text()[-3000:]}")

    def children(self) -> set[int]:
        return children_of(self.process.pid)

    def connect(self) -> socket.socket:
        """A raw connection that fails after PATIENCE instead of hanging."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=PATIENCE, trust_env=False)

    def stop(self, sig: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and wait; returns the exit code."""
        self.process.send_signal(sig)
        return self.process.wait(PATIENCE)


def children_of(pid: int) -> set[int]:
    """The ids of its processes, from /proc."""
    pids = set()
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):  # that one has ended
            if f"\nPPid:\t{pid}\n" in status.read_text("ascii", errors="replace"):
                pids.add(int(status.parent.name))
    return pids


def state_of(pid: int) -> str:
    """The letter that /proc has for it; none where it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("ascii", errors="replace")
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[0]


def alive(pid: int) -> bool:
    """Whether this process has not ended, or become a zombie."""
    return state_of(pid) not in ("", "Z", "X")


@contextlib.contextmanager
def running(
    repository: Path,
    directory: Path,
    *,
    settings: Mapping[str, object] | None = None,
    module: str = "paddlepool.cli",
    before: Callable[[], None] | None = None,
    passed: socket.socket | None = None,
    loaded: bool = True,
) -> Iterator[Server]:
    """A server on this model repository; its log goes to `directory`. Killed at the end.

    `before` is called in its process. A listening socket is `passed` as systemd does it. Unless
    `loaded` is False, loading has ended by then, well or not.
    """
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PADDLEPOOL_")}
    # The groups stay as config.toml says, unless a test asks for more.
    fixed = {"drain_delay_seconds": 0, "state_file": "off", "prove_groups": "off"}
    settings = fixed | dict(settings or {})
    environment |= {f"PADDLEPOOL_{name.upper()}": str(v) for name, v in settings.items()}
    command = [sys.executable, "-m", module, "serve", "--port", "0"]
    if passed is not None:
        command = [sys.executable, "-c", AS_SYSTEMD, str(passed.fileno()), *command]
    log_file = directory / "server.log"
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            [*command, "--model-repository", str(repository)],
            cwd=ROOT,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=[] if passed is None else [passed.fileno()],
            preexec_fn=before,
        )
    try:
        server = Server(process, log_file)
        if loaded:
            server.wait_logged(event="loaded")
        yield server
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def asking(server: Server, count: int, ask: Callable[[httpx.Client], object]) -> Iterator[None]:
    """So many clients, each of which asks again and again until the end."""
    stop = threading.Event()

    def keep_asking() -> None:
        with server.client() as client:
            while not stop.is_set():
                ask(client)

    with ThreadPoolExecutor(count) as clients:
        running = [clients.submit(keep_asking) for _ in range(count)]
        try:
            yield
        finally:
            stop.set()
    for future in running:
        future.result()


@contextlib.contextmanager
def slow_server(directory: Path, **settings: object) -> Iterator[Server]:
    """A server without models, with the task of `slow_task`."""
    (directory / "models").mkdir()
    with running(
        directory / "models", directory, settings=settings, module="tests.e2e.altered_server"
    ) as server:
        yield server


def read_all(connection: socket.socket) -> bytes:
    """Everything until the server closes."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while data := connection.recv(65_536):
            received += data
    return received


def read_reply(connection: socket.socket, method: str = "GET") -> HTTPResponse:
    """One reply, read to its end; the connection stays open."""
    reply = HTTPResponse(connection, method=method)
    reply.begin()
    reply.read()
    return reply


def status_of(reply: bytes) -> int:
    """The status code of the first reply; 0 where there is none."""
    return int(reply.split(b" ", 2)[1]) if reply.startswith(b"HTTP/1.1 ") else 0
