"""What a stranger's code could do in a child process: nothing to anybody else."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from app.codecs.pool import CodecPool
from app.process import landlock, seccomp
from app.process.child import Child, Limits
from app.process.confinement import Confinement
from tests.process.kernel import check_held

REFUSED = {"EPERM", "EACCES"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "there").write_bytes(b"as it was")
    return tmp_path


def status(pid: int) -> Mapping[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


@pytest.mark.slow
def test_a_codec_process_can_touch_nothing(folder: Path) -> None:
    """No socket, no program, no process, no file to write; and of files, its own code to read."""
    pool = CodecPool(count=1)
    try:
        made = {"folder": str(folder)}
        call = pool.submit("tests.process.attempts:in_codec", made, deadline=time.monotonic() + 60)
        found = call.result(timeout=60).meta
        check_held(pool.held)
        assert {name: reason for name, reason in found.items() if reason not in REFUSED} == {}
        [pid] = pool.pids()
        state = status(pid)
        assert (state["NoNewPrivs"], state["Seccomp"]) == ("1", "2")
        assert int(state["CapEff"], 16) & ~0b110 == 0
        assert (folder / "there").read_bytes() == b"as it was"
        assert sorted(path.name for path in folder.iterdir()) == ["there"]
    finally:
        pool.close()


@pytest.mark.slow
def test_the_working_directory_is_nothing_to_a_codec_process(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It imports nothing from there, and may read nothing there: a server starts anywhere."""
    (folder / "ctypes.py").write_text("raise SystemError", "utf-8")
    monkeypatch.chdir(folder)
    pool = CodecPool(count=1)
    try:
        made = {"folder": str(folder)}
        call = pool.submit("tests.process.attempts:in_codec", made, deadline=time.monotonic() + 60)
        assert call.result(timeout=60).meta["read"] in REFUSED
    finally:
        pool.close()


def test_a_predictor_process_may_write_where_models_are_converted_and_nowhere_else(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its older threads are no freer; they may read, because models are anywhere."""
    elsewhere = folder / "temporary"
    elsewhere.mkdir()
    monkeypatch.setenv("TMPDIR", str(elsewhere))
    child = Child(
        "tests.process.attempts:open_predictor",
        {},
        limits=Limits(confinement=Confinement.PREDICTOR),
    )
    try:
        check_held(child.held)
        found = child.call({"folder": str(folder)}, timeout=60.0).meta
        done = {name for name, reason in found.items() if reason not in REFUSED}
        assert done == {"read", "read a device", "make a file of memory"}
        assert status(child.pid)["NoNewPrivs"] == "1"
    finally:
        child.close()
    assert (folder / "there").read_bytes() == b"as it was"
    inside = Child(
        "tests.process.attempts:open_predictor",
        {},
        limits=Limits(confinement=Confinement.PREDICTOR),
    )
    try:
        (elsewhere / "there").write_bytes(b"mine")
        found = inside.call({"folder": str(elsewhere)}, timeout=60.0).meta
        assert {name for name, reason in found.items() if reason == "done"} >= {"create", "remove"}
        for name in ("change a mode", "change an owner"):
            assert found[name] in REFUSED
    finally:
        inside.close()


def test_the_operators_terminal_is_for_writing_alone() -> None:
    """Also where there is no filter: it is not theirs, and they are not given what is typed."""
    ours, theirs = pty.openpty()
    try:
        with subprocess.Popen(
            [sys.executable, "-m", "tests.process.at_terminal"],
            stdin=theirs,
            stderr=theirs,
            stdout=subprocess.PIPE,
            start_new_session=True,
        ) as server:
            printed = server.communicate(timeout=60)[0]
        assert os.read(ours, 100) == b"written"
    finally:
        os.close(ours)
        os.close(theirs)
    found = json.loads(printed)
    assert (found["its own"], found["read"]) == ("ENXIO", "EBADF")


def test_what_the_kernel_refuses_is_not_said_to_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others hold, and nothing fails."""
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert not seccomp.install(codec=True)
    monkeypatch.setattr(landlock, "_CREATE", 10_000)  # no such system call
    assert landlock.restrict(reading=None, writing=()) == 0
