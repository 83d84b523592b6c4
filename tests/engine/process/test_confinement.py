"""What a stranger's code could do in a child process: nothing but what `SECURITY.md` lists."""

import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from paddlepool.engine.backends.process import ProcessBackend
from paddlepool.engine.process import confinement
from paddlepool.engine.process.start import Spares
from paddlepool.tasks.codecs.pool import CodecPool
from paddlepool.tasks.codecs.program import ENVIRONMENT, SANDBOX
from tests.engine.backends.test_process import opened, spec
from tests.engine.fakes import PATIENCE, row
from tests.engine.process.kernel import check_held, live_pids

pytestmark = pytest.mark.slow  # real processes

REFUSED = {"EPERM", "EACCES"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What an attacker would look for; the working directory, which a server may start in."""
    for name in ("models/mine/1/weights", "models/other/1/weights", "key"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"as it was")
    (tmp_path / "ctypes.py").write_text("raise SystemError", "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PADDLEPOOL_ADMIN_KEY", "secret")
    return tmp_path


def check_outcomes(folder: Path, pid: int, done: Mapping[str, str], *, allowed: set[str]) -> None:
    """Only what is allowed was done, and it left nothing behind."""
    assert len(done) >= 49
    assert {name for name, reason in done.items() if reason == "done"} == allowed
    assert {reason for reason in done.values() if reason != "done"} <= REFUSED, done
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert len(files) == 4
    assert list(files.values()).count(b"as it was") == 3
    lines = Path(f"/proc/{pid}/status").read_text("ascii").splitlines()
    state = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
    assert (state["NoNewPrivs"], state["Seccomp"]) == ("1", "2")
    assert int(state["CapEff"], 16) & ~0b110 == 0


def is_spare(pid: int) -> bool:
    return SANDBOX in Path(f"/proc/{pid}/cmdline").read_text("utf-8")


@pytest.mark.parametrize("count", [0, 1], ids=["new", "spare"])
async def test_a_codec_process_can_touch_nothing(folder: Path, count: int) -> None:
    """It reads its own code."""
    spares = Spares()
    spares.start(ENVIRONMENT, prepare=SANDBOX, count=count)
    pool = CodecPool(count=1, spares=spares)
    pool.start()
    try:
        attempts = "tests.engine.process.attempts:in_codec"
        until = time.monotonic() + 60
        reply = await pool.submit(attempts, {"folder": str(folder)}, deadline=until)
        check_held(pool.held or ())
        [pid] = live_pids(pool)
        check_outcomes(folder, pid, reply.meta, allowed={"read its code"})
        assert is_spare(pid) == bool(count)
    finally:
        await pool.close()
        spares.close()


def test_a_predictor_process_can_read_its_model_and_touch_nothing(folder: Path) -> None:
    """Nor while it opens its model, and no thread is freer than another."""
    mine = spec(directory=folder / "models/mine/1", options={"folder": str(folder)})
    backend = ProcessBackend({"fake": "tests.engine.process.attempts:open_predictor"})
    with opened(mine, backend) as predictor:
        check_held(backend.held)
        [encoded] = predictor.run(row(1), timeout=PATIENCE).values()
        allowed = {"read its code", "read its model", "a file of memory"}
        for done in json.loads(encoded.tobytes()):
            check_outcomes(folder, predictor.pid, done, allowed=allowed)


@pytest.mark.parametrize("where", ["terminal", "pipe", "file"])
def test_a_child_prints_and_has_nothing_else_of_the_operators(where: str, tmp_path: Path) -> None:
    """Also without a filter of calls: it can read nothing, and take back nothing it printed."""
    master, terminal = pty.openpty()
    log = os.open(tmp_path / "log", os.O_CREAT | os.O_RDWR)
    reads, writes = {"terminal": (master, terminal), "pipe": os.pipe(), "file": (log, log)}[where]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.engine.process.at_terminal"],
        stdin=terminal,
        stderr=writes,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as server:
        pid, done = json.loads(server.communicate(timeout=60)[0])
    if where == "file":
        os.lseek(log, 0, os.SEEK_SET)
    assert os.read(reads, 100).rstrip() == f"before child process {pid}: written".encode()
    for descriptor in {master, terminal, log, reads, writes}:
        os.close(descriptor)
    assert list(done.values()) == ["ENXIO", "EBADF", "EAGAIN", "EINVAL", "ESPIPE"]


def test_libraries_beside_the_package_are_readable_where_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`pip install --user` puts them there; beside a checkout may lie keys."""
    monkeypatch.setattr(confinement, "_PACKAGE", tmp_path / "paddlepool")
    monkeypatch.syspath_prepend(tmp_path)
    assert tmp_path not in confinement._code()
    (tmp_path / "paddlepool-1.0.dist-info").mkdir()
    assert tmp_path in confinement._code()


def test_what_the_kernel_refuses_is_not_said_to_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others hold, and nothing fails."""
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert not confinement.confine_calls(confinement.Confinement.CODEC)
    monkeypatch.setattr(confinement, "_CREATE", 10_000)  # no such system call
    assert confinement.restrict(reading=(), writing=()) == 0
