"""Processes that are held really stand still, go on, and end."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.process.suspension import Suspension
from tests.engine.fakes import PATIENCE

PROGRAM = "import sys; print('up', flush=True); sys.stdin.read()"


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def wait_state(process: subprocess.Popen[bytes], *, stopped: bool) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        stat = Path(f"/proc/{process.pid}/stat").read_text()
        if (stat.rpartition(")")[2].split()[0] == "T") == stopped:
            return
        time.sleep(0.005)
    raise AssertionError(f"never {'stopped' if stopped else 'running'}")


def test_what_is_held_stands_still_until_released(process: subprocess.Popen[bytes]) -> None:
    """By signals of the system, so that native code stops in the middle of a run."""
    suspension = Suspension()
    suspension.add(process)
    suspension.hold()
    wait_state(process, stopped=True)
    assert (suspension.held, suspension.holds) == (True, 1)
    suspension.release()
    wait_state(process, stopped=False)
    assert not suspension.held


def test_who_joins_a_held_pause_is_stopped_too(process: subprocess.Popen[bytes]) -> None:
    """A process may be started at the moment a request arrives."""
    suspension = Suspension()
    suspension.hold()
    suspension.add(process)
    wait_state(process, stopped=True)


def test_who_left_is_not_stopped(process: subprocess.Popen[bytes]) -> None:
    """A process that was discarded is nobody's business any more."""
    suspension = Suspension()
    suspension.add(process)
    suspension.discard(process)
    suspension.hold()
    wait_state(process, stopped=False)


def test_who_leaves_a_held_pause_goes_on(process: subprocess.Popen[bytes]) -> None:
    """Nobody else would ever continue it."""
    suspension = Suspension()
    suspension.add(process)
    suspension.hold()
    suspension.discard(process)
    wait_state(process, stopped=False)


@pytest.mark.slow
def test_a_let_up_lasts_for_the_moment(process: subprocess.Popen[bytes]) -> None:
    """The process runs for so long, whatever is held, and stands still after it."""
    suspension = Suspension(slice_seconds=1.0)  # long enough for anybody to see it
    suspension.add(process)
    suspension.hold()
    running_briefly = threading.Thread(target=suspension.run_briefly, args=(process,))
    wait_state(process, stopped=True)
    running_briefly.start()
    wait_state(process, stopped=False)
    running_briefly.join()
    wait_state(process, stopped=True)


def test_a_pause_without_a_moment_never_lets_up(process: subprocess.Popen[bytes]) -> None:
    """What it holds may wait for ever."""
    suspension = Suspension()
    suspension.add(process)
    suspension.hold()
    wait_state(process, stopped=True)
    suspension.run_briefly(process)
    wait_state(process, stopped=True)


def test_the_end_kills_also_what_stands_still(process: subprocess.Popen[bytes]) -> None:
    """And what is added after it."""
    suspension = Suspension()
    suspension.add(process)
    suspension.hold()
    suspension.end()
    assert process.wait(PATIENCE) == -signal.SIGKILL


def test_a_process_that_has_ended_is_no_error(process: subprocess.Popen[bytes]) -> None:
    """It may end at any moment, before it is discarded."""
    suspension = Suspension()
    suspension.add(process)
    process.kill()
    process.wait(PATIENCE)
    suspension.hold()
    suspension.release()
    suspension.end()
