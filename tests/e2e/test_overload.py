"""More than the server can answer or hold: it takes what it can and refuses the rest."""

import contextlib
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.e2e.process import ROOT, read_reply, running
from tests.ran import ran

pytestmark = [pytest.mark.e2e, pytest.mark.paddle]


@pytest.mark.nightly
def test_goodput_survives_three_times_the_load(tmp_path: Path) -> None:
    """How much is left a busy machine cannot tell; short queues are full within seconds."""
    repository = shutil.copytree(ROOT / "model_repo", tmp_path / "models")
    for name, jobs in (("u2netp", 2), ("emotion", 12)):
        config = repository / name / "config.toml"
        text = config.read_text("utf-8")
        short = re.sub(r"max_queue_size = \d+", f"max_queue_size = {jobs}", text)
        assert short != text
        config.write_text(short, "utf-8")
    command = [sys.executable, "loadtest/with_without.py", "overload", "--least", "0.5"]
    command += ["--seconds", "3", "--rounds", "2", "--repository", str(repository)]
    done = ran(command, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    refused = [int(ms) for ms in re.findall(r"refused within (\d+) ms", done.stdout)]
    assert len(refused) == 2, done.stdout
    assert max(refused) < 500, done.stdout


MIB = 1 << 20
BODIES, BODY_BYTES, BUDGET_BYTES = 12, 40 * MIB, 96 * MIB


def peak_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text("ascii").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def test_unfinished_bodies_share_their_memory(tiny_model_repository: Path, tmp_path: Path) -> None:
    """Of twelve that send 40 of 48 MiB and stop, those that fit are kept, the others get 503."""
    head = (
        b"POST /v2/models/tiny/infer HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Length: %d\r\n\r\n" % (BODY_BYTES + 8 * MIB)
    )
    settings = {"body_memory_bytes": BUDGET_BYTES}
    with (
        running(tiny_model_repository, tmp_path, settings=settings) as server,
        contextlib.ExitStack() as stack,
    ):
        before = peak_bytes(server.process.pid)
        connections = []
        for _ in range(BODIES):
            connections.append(stack.enter_context(server.connect()))
            with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                connections[-1].sendall(head + bytes(BODY_BYTES))
        with server.client() as client:
            assert client.get("/v2/models/tiny").status_code == 200
        refused = []
        for connection in connections:
            connection.settimeout(0.3)
            with contextlib.suppress(TimeoutError):
                refused.append(read_reply(connection))
        grown = peak_bytes(server.process.pid) - before
    assert grown < BUDGET_BYTES + 64 * MIB
    assert len(refused) >= BODIES - BUDGET_BYTES // BODY_BYTES
    for reply in refused:
        assert (reply.status, reply.headers["retry-after"]) == (503, "1")
