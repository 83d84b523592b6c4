"""How connections end: early refusals, and too few open files."""

import contextlib
import json
import re
import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from app.service.server.system import OWN_DESCRIPTORS
from tests.e2e.process import Server, read_all, running, status_of
from tests.ran import ran

pytestmark = pytest.mark.e2e

HOST = b"Host: localhost\r\n"


def test_who_sends_everything_before_reading_hears_why_it_was_refused(server: Server) -> None:
    """The reply is there although the connection is cut while it sends."""
    head = b"POST /sentiment HTTP/1.1\r\n" + HOST + b"Content-Length: 30000000\r\n\r\n"
    with server.connect() as connection:
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            connection.sendall(head + bytes(30_000_000))
        assert status_of(read_all(connection)) == 413


def start(tmp_path: Path, kind: int, limit: int) -> subprocess.CompletedProcess[str]:
    """A server on an empty repository under a limit of the system that ends its start."""
    (tmp_path / "models").mkdir()
    command = [sys.executable, "-m", "app.cli", "serve", "--port", "0", "--model-repository"]
    return ran(
        [*command, str(tmp_path / "models")],
        preexec_fn=lambda: resource.setrlimit(kind, (limit, limit)),
        check=False,
    )


def test_too_few_open_files_end_the_start(tmp_path: Path) -> None:
    done = start(tmp_path, resource.RLIMIT_NOFILE, OWN_DESCRIPTORS)
    assert done.returncode == 3
    [line] = done.stderr.splitlines()
    assert f"the limit of open files is {OWN_DESCRIPTORS}" in line
    assert f"PADDLEPOOL_MAX_CONNECTIONS=1000 needs {OWN_DESCRIPTORS + 1_000}" in line


@pytest.mark.parametrize(
    ("kind", "limit", "said"),
    [
        (resource.RLIMIT_AS, 600_000 << 10, "address space is 600000 KiB, .* need 1310720 KiB"),
        (resource.RLIMIT_FSIZE, 100 << 10, "file size is 100 KiB, .* need 65536 KiB"),
    ],
)
def test_limits_without_room_for_children_end_the_start(
    tmp_path: Path, kind: int, limit: int, said: str
) -> None:
    """The server does not wait for child processes that can never start."""
    done = start(tmp_path, kind, limit)
    assert done.returncode == 3
    [line] = done.stderr.splitlines()
    assert re.search(said, line)


def test_a_missing_repository_is_answered_by_the_commands_that_make_one(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "app.cli", "serve", "--port", "0", "--model-repository", "a b"]
    done = ran(command, cwd=tmp_path, check=False)
    assert done.returncode == 3
    [line] = done.stderr.splitlines()
    assert line.endswith(
        "paddlepool pull u2netp --repository 'a b' && paddlepool serve --model-repository 'a b'"
    )


def with_few_files(directory: Path, files: int) -> Path:
    """A script that starts a server with so many open files at most."""
    code = (
        "import resource, runpy, sys;"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, (64, {files}));"
        "sys.argv[0] = 'paddlepool'; runpy.run_module('app.cli', run_name='__main__')"
    )
    module = directory / "few_files.py"
    module.write_text(code, "utf-8")
    return module


def test_the_limit_of_open_files_is_raised_for_the_connections(tmp_path: Path) -> None:
    """And the connection that is one too many gets its 503."""
    (tmp_path / "models").mkdir()
    idle: list[socket.socket] = []
    few = OWN_DESCRIPTORS + 20
    script, settings = with_few_files(tmp_path, few), {"max_connections": 20}
    with running(tmp_path / "models", tmp_path, script=script, settings=settings) as server:
        server.wait_loaded()
        try:
            for _ in range(21):
                idle.append(server.connect())
            with server.connect() as connection:
                connection.sendall(b"GET /v2/health/live HTTP/1.1\r\n" + HOST + b"\r\n")
                reply = read_all(connection)
        finally:
            for connection in idle:
                connection.close()
    assert status_of(reply) == 503
    assert json.loads(reply.partition(b"\r\n\r\n")[2])
