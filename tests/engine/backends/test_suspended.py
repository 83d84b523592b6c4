"""Predictor processes that give way: stopped in the middle of a run, and never left behind."""

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from paddlepool.contracts.errors import WorkerCrashed
from paddlepool.engine.backends.process import ProcessBackend, ProcessPredictor
from paddlepool.engine.process.suspension import Suspension
from tests.e2e.process import alive
from tests.engine.backends.targets import HANG, SPIN
from tests.engine.backends.test_process import FAKES, opened, spec
from tests.engine.fakes import PATIENCE, row, wait_until
from tests.ran import ROOT

pytestmark = pytest.mark.slow  # real processes, some of them hung on purpose


@pytest.fixture
def suspension() -> Suspension:
    return Suspension()


@pytest.fixture
def predictor(suspension: Suspension) -> Iterator[ProcessPredictor]:
    """In the suspension, but not so idle that a busy machine never lets it run."""
    with opened(spec(), suspension=suspension) as predictor:
        yield predictor


def test_it_runs_only_where_nobody_else_wants_to(suspension: Suspension) -> None:
    """Every thread of it, also those that a framework starts."""
    with opened(spec(), ProcessBackend(FAKES, suspension=suspension)) as predictor:
        for task in Path(f"/proc/{predictor.pid}/task").iterdir():
            assert os.sched_getscheduler(int(task.name)) == os.SCHED_IDLE


def test_a_run_outlives_its_timeout_while_it_is_held(
    predictor: ProcessPredictor, suspension: Suspension
) -> None:
    """The clock of a process that must stand still stands still, too."""
    suspension.hold()
    release = threading.Timer(3.0, suspension.release)  # beyond the timeout and the stopped limit
    release.start()
    assert predictor.run(row(SPIN), timeout=2.0)["y"].tolist() == [[2 * SPIN]]
    release.join()


def test_a_held_process_is_not_a_dead_one(
    predictor: ProcessPredictor, suspension: Suspension
) -> None:
    """Others in state T are replaced; this one is meant to be there."""
    suspension.hold()
    os.waitid(os.P_PID, predictor.pid, os.WSTOPPED | os.WNOWAIT)
    assert predictor.failure() is None
    suspension.release()
    assert predictor.run(row(1), timeout=PATIENCE)["y"].tolist() == [[2]]


def test_the_end_breaks_off_a_held_run(predictor: ProcessPredictor, suspension: Suspension) -> None:
    """A shutdown does not wait for an idle moment."""
    suspension.hold()
    ending = threading.Timer(0.2, suspension.end)
    ending.start()
    with pytest.raises(WorkerCrashed):
        predictor.run(row(HANG), timeout=PATIENCE)
    ending.join()


def test_nothing_is_opened_after_the_end(suspension: Suspension) -> None:
    """A process that is just being started when the server ends is killed, not awaited."""
    suspension.end()
    with pytest.raises(WorkerCrashed):
        ProcessBackend(FAKES, suspension=suspension)(spec())


def test_a_stopped_process_ends_with_its_parent() -> None:
    """It reads nothing while it is stopped: the kernel ends it."""
    program = """
        import os, signal, sys, threading
        from paddlepool.engine.backends.process import ProcessBackend
        from tests.engine.backends.test_process import FAKES, spec

        opened = []
        opening = threading.Thread(target=lambda: opened.append(ProcessBackend(FAKES)(spec())))
        opening.start()
        opening.join()
        predictor = opened[0]
        os.kill(predictor.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, predictor.pid, os.WSTOPPED | os.WNOWAIT)
        print(predictor.pid, flush=True)
        sys.stdin.readline()
        os.kill(os.getpid(), signal.SIGKILL)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        pid = int(server.stdout.readline())
        assert alive(pid)
        server.communicate("\n", timeout=PATIENCE)
    wait_until(lambda: not alive(pid))
