"""Nobody reads the server's log any more: its pipe is full, and everything else goes on."""

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from paddlepool.observability.log import FLUSH_SECONDS
from tests.e2e.process import Server, asking, running

pytestmark = [pytest.mark.e2e, pytest.mark.paddle]

FAILING = """
default_group = "failing"
[dynamic_batching]
max_queue_size = 64
[[instance_group]]
name = "failing"
backend = "failing"
"""
PIPE_BYTES = 4096
LATE_SECONDS = 5.0
"""Far more than any request takes, and far less than a server that writes would wait."""


@contextlib.contextmanager
def read_until_loaded(repository: Path, directory: Path) -> Iterator[Server]:
    """A server whose log is read until its models are loaded, and then no more."""
    reads, writes = os.pipe()
    fcntl.fcntl(writes, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    stop = threading.Event()

    def copy() -> None:
        with (directory / "server.log").open("ab", buffering=0) as file:
            while not stop.is_set():
                file.write(os.read(reads, PIPE_BYTES))

    def take_over() -> None:
        os.dup2(writes, 1)
        os.dup2(writes, 2)

    reader = threading.Thread(target=copy, daemon=True)
    reader.start()
    try:
        with running(
            repository,
            directory,
            module="tests.e2e.altered_server",
            before=take_over,
        ) as server:
            stop.set()
            with server.client() as client:
                client.get("/")  # its line lets the reader see that it is to stop
            reader.join()
            yield server
    finally:
        os.close(writes)
        os.close(reads)


def document(width: int) -> dict[str, Any]:
    data = [0.5] * (3 * 8 * width)
    image = {"name": "image", "datatype": "FP32", "shape": [1, 3, 8, width], "data": data}
    return {"inputs": [image]}


@pytest.mark.parametrize("lasting", [3, pytest.param(60, marks=pytest.mark.nightly)])
def test_a_log_that_nobody_reads_delays_no_request(
    lasting: float, repository: Path, tmp_path: Path
) -> None:
    """Of requests, failing runs whose processes print, and probes, none is late; nor is the end."""
    (repository / "tiny" / "config.toml").write_text(FAILING, "utf-8")
    slowest: dict[str, float] = {}

    def ask(client: httpx.Client) -> None:
        for width, status in ((8, 200), (9, 400)):
            started = time.monotonic()
            reply = client.post("/v2/models/tiny/infer", json=document(width))
            seconds = time.monotonic() - started
            slowest["infer"] = max(seconds, slowest.get("infer", 0))
            assert reply.status_code == status, reply.text

    with read_until_loaded(repository, tmp_path) as server:
        with asking(server, 4, ask), server.client() as client:
            until = time.monotonic() + lasting
            while time.monotonic() < until:
                started = time.monotonic()
                assert client.get("/v2/health/live").status_code == 200
                assert client.get("/v2/health/ready").status_code == 200
                slowest["health"] = max(time.monotonic() - started, slowest.get("health", 0))
        print({name: round(seconds, 3) for name, seconds in slowest.items()})
        assert max(slowest.values()) < LATE_SECONDS
        started = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - started < FLUSH_SECONDS + LATE_SECONDS
