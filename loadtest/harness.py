"""Run a server process on a free local port, connect to it, and measure its memory."""

import compileall
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[1]
HOST = "127.0.0.1"
STOP_SECONDS = 90.0
"""More than a drain takes, including under Ray."""
IDLE_SECONDS = 2.0
"""Well below the server's keep-alive timeout."""
CLOSED = "the server closed the connection within a reply"
REQUEST_ERRORS = (OSError, ValueError, IndexError)
"""Exceptions of a client for a failed connection or an invalid reply."""
STAGE = re.compile(r"(\w+);dur=([\d.]+)")
LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP reply: wall seconds from the first byte sent to the last byte received."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    seconds: float

    def stages(self) -> dict[str, float]:
        """Return the milliseconds of each stage that the server names, without their total."""
        found = STAGE.findall(self.headers["server-timing"])
        return {name: float(value) for name, value in found if name != "total"}

    @property
    def closes(self) -> bool:
        """Whether the server closes the connection after it."""
        return self.headers.get("connection") == "close"


class Connection:
    """A keep-alive connection that sends prepared bytes, so that the client costs little.

    The first request opens it, and so does the next one after an error, a pause, or a reply that
    ends it.
    """

    def __init__(self, port: int, *, timeout: float = 60.0) -> None:
        self._port, self._timeout = port, timeout
        self._socket: socket.socket | None = None
        self._used = 0.0

    def send(self, request: bytes) -> Reply:
        """Send a request and wait for its reply. Raises one of REQUEST_ERRORS."""
        if time.perf_counter() - self._used > IDLE_SECONDS:
            self.close()
        reply = None
        try:
            if self._socket is None:
                self._socket = socket.create_connection((HOST, self._port), timeout=self._timeout)
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            began, received = time.perf_counter(), bytearray()
            self._socket.sendall(request)
            while (reply := complete(received, began)) is None:
                if not (chunk := self._socket.recv(1 << 18)):
                    raise ConnectionError(CLOSED)
                received += chunk
        finally:
            if reply is None or reply.closes:
                self.close()
        self._used = time.perf_counter()
        return reply

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def complete(received: bytearray, began: float) -> Reply | None:
    """Return the reply that began with these bytes, if it has been received completely."""
    seconds = time.perf_counter() - began
    if (split := body_of(received)) is None:
        return None
    status, *lines = received[: split - 4].decode("latin-1").split("\r\n")
    fields = (line.partition(":") for line in lines)
    headers = {name.lower(): value.strip() for name, _, value in fields}
    return Reply(int(status.split()[1]), headers, bytes(received[split:]), seconds)


def body_of(received: bytearray) -> int | None:
    """Return where the body begins in a reply that has been received completely."""
    if (split := received.find(b"\r\n\r\n")) < 0:
        return None
    found = LENGTH.search(received, 0, split)
    size = int(found[1]) if found else 0
    return split + 4 if len(received) >= split + 4 + size else None


def send(port: int, request: bytes, *, timeout: float = 60.0) -> Reply:
    """Send a request on a new connection and return the reply."""
    with contextlib.closing(Connection(port, timeout=timeout)) as connection:
        return connection.send(request)


def status_of(port: int, request: bytes, *, timeout: float) -> int:
    """The status of the reply to a request, or 0 without one."""
    with contextlib.suppress(*REQUEST_ERRORS):
        return send(port, request, timeout=timeout).status
    return 0


def request(
    method: str,
    path: str,
    body: bytes = b"",
    *,
    content_type: str = "",
    headers: Mapping[str, str] = MappingProxyType({}),
) -> bytes:
    """Build an HTTP/1.1 request as bytes."""
    head = f"{method} {path} HTTP/1.1\r\nHost: {HOST}\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    if body:
        head += f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
    return head.encode("ascii") + b"\r\n" + body


def json_request(path: str, body: object) -> bytes:
    """Build a POST of JSON as bytes."""
    return request("POST", path, json.dumps(body).encode(), content_type="application/json")


@dataclass(frozen=True, slots=True)
class Server:
    """A running server, and the directory in which it was started."""

    port: int
    process: subprocess.Popen[bytes]
    directory: Path

    @property
    def pid(self) -> int:
        return self.process.pid


@contextlib.contextmanager
def meanwhile(*works: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run each work in its own thread during the block; raise its error after the block.

    A work ends soon after its event is set.
    """
    ending = threading.Event()
    with ThreadPoolExecutor(len(works)) as threads:
        working = [threads.submit(work, ending) for work in works]
        try:
            yield
        finally:
            ending.set()
        for future in working:
            future.result()


def repeated(
    work: Callable[[], object], *, every: Callable[[], float]
) -> AbstractContextManager[None]:
    """Run work in a thread during the block, again and again, with pauses of `every()` seconds."""

    def run(ending: threading.Event) -> None:
        work()
        while not ending.wait(every()):
            work()

    return meanwhile(run)


def resident_bytes(pid: int) -> int:
    """Resident memory of one process. Raises OSError after its end."""
    pages = int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def memory_of(pid: int) -> int:
    """Memory of a process and its descendants in bytes, with shared pages counted once."""
    return sum(map(_proportional_bytes, (pid, *descendants(pid))))


def cpu_seconds(pid: int, *, below: bool = True) -> float:
    """Processor time of a process and, unless not `below`, of its descendants."""
    return sum(map(_running, (pid, *(descendants(pid) if below else ()))))


def free_port() -> int:
    with socket.create_server((HOST, 0)) as probe:
        return int(probe.getsockname()[1])


def compile_package(checkout: Path = ROOT) -> None:
    """Write the package's bytecode, as pip does for the installed packages of other servers.

    Otherwise each start of a checkout would compile the modules that only child processes import,
    which may not write, and all of them with PYTHONDONTWRITEBYTECODE.
    """
    compileall.compile_dir(checkout / "app", quiet=1)


def running_server(
    repository: Path | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    log_file: Path | None = None,
    checkout: Path = ROOT,
    port: int | None = None,
) -> AbstractContextManager[Server]:
    """Run `paddlepool serve` with this model repository, or that of its settings, within the block.

    Another checkout runs with its own .venv. Raises RuntimeError, with the end of its
    log, if it is not ready within two minutes.
    """
    port = port or free_port()
    compile_package(checkout)
    settings = {
        "PADDLEPOOL_HOST": HOST,
        "PADDLEPOOL_PORT": str(port),
        "PADDLEPOOL_DRAIN_DELAY_SECONDS": "0",
        # config.toml decides the default group, unless a benchmark changes that.
        "PADDLEPOOL_PROVE_GROUPS": os.environ.get("PADDLEPOOL_PROVE_GROUPS", "off"),
        "PADDLEPOOL_STATE_FILE": "off",
    }
    if repository is not None:
        settings["PADDLEPOOL_MODEL_REPOSITORY"] = str(repository.resolve())
    python = sys.executable if checkout == ROOT else checkout.resolve() / ".venv/bin/python"
    settings |= environment or {}
    command = [Path(python).with_name("paddlepool"), "serve"]
    return running_program(
        command, port, environment=settings, log_file=log_file, directory=checkout
    )


@contextlib.contextmanager
def running_program(
    command: Sequence[object],
    port: int,
    *,
    path: str = "/v2/health/ready",
    environment: Mapping[str, str] = MappingProxyType({}),
    log_file: Path | None = None,
    timeout: float = 120.0,
    directory: Path = ROOT,
) -> Iterator[Server]:
    """Run a program within the block; end it with its descendants.

    It is ready when it answers `path` with 200. Raises RuntimeError, with the end of its log, if it
    is not ready within `timeout` seconds.
    """
    began, words = time.perf_counter(), list(map(str, command))
    with (
        log_file.open("w+b") if log_file is not None else tempfile.TemporaryFile() as log,
        subprocess.Popen(
            words,
            cwd=directory,
            env=os.environ | environment,
            stdout=log,
            stderr=log,
        ) as process,
    ):
        try:
            while status_of(port, request("GET", path), timeout=5) != 200:
                ended = process.poll() is not None
                if ended or time.perf_counter() - began > timeout:
                    log.seek(0)
                    lines = log.read().decode(errors="replace").splitlines()
                    tail = "\n".join(line for line in lines if "paddlepool.access" not in line)
                    reason = "ended" if ended else f"was not ready within {timeout:.0f} s"
                    raise RuntimeError(f"{' '.join(words)} {reason}:\n{tail[-2000:]}")
                time.sleep(0.05)
            yield Server(port, process, directory)
        finally:
            below = descendants(process.pid)
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS)
            process.kill()
            for pid in below:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def wait_until(poll: Callable[[], T], what: str, *, timeout: float, every: float = 0.05) -> T:
    """Wait until `poll()` returns something true, and return it.

    Raises RuntimeError that names `what` after `timeout` seconds.
    """
    until = time.perf_counter() + timeout
    while not (value := poll()):
        if time.perf_counter() > until:
            raise RuntimeError(f"{what} within {timeout:.0f} s")
        time.sleep(every)
    return value


def descendants(pid: int) -> list[int]:
    """The ids of all descendants of a process."""
    parents: dict[int, int] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = file.read_text("ascii", errors="replace").rpartition(")")[2].split()
            parents[int(file.parent.name)] = int(fields[1])
    pids, below = {pid}, {pid}
    while below:
        below = {child for child, parent in parents.items() if parent in below}
        pids |= below
    return sorted(pids - {pid})


def _running(pid: int) -> float:
    """Processor time of its live threads, in nanoseconds; the times in `stat` are hundredths."""
    seconds = 0.0
    for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):
            seconds += int(file.read_text("ascii").split()[0]) / 1e9
    return seconds


def _proportional_bytes(pid: int) -> int:
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii")
        if match := re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE):
            return int(match[1]) * 1024
    return 0
