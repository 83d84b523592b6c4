"""Processes that are held really stand still, go on, and end."""

import subprocess
import threading
from collections.abc import Iterator

import pytest

from paddlepool.engine.process.suspension import Suspension
from tests.e2e.process import state_of
from tests.engine.fakes import PATIENCE
from tests.ran import wait_until


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def wait_state(process: subprocess.Popen[bytes], *, stopped: bool) -> None:
    wait_until(lambda: (state_of(process.pid) == "T") == stopped)


@pytest.mark.parametrize(
    ("steps", "stopped"),
    [
        pytest.param(["hold", "add"], True, id="joins a held one"),
        pytest.param(["add", "discard", "hold"], False, id="has left"),
        pytest.param(["add", "hold", "discard"], False, id="leaves a held one"),
    ],
)
def test_only_what_belongs_to_it_stands_still(
    process: subprocess.Popen[bytes], steps: list[str], stopped: bool
) -> None:
    """A process may start when a request arrives, and goes on once it has left."""
    suspension = Suspension()
    for step in steps:
        getattr(suspension, step)(*([] if step == "hold" else [process]))
        if step == "hold" and steps[:2] == ["add", "hold"]:  # held: it stops before it leaves
            wait_state(process, stopped=True)
    wait_state(process, stopped=stopped)


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


def test_a_process_that_has_ended_is_no_error(process: subprocess.Popen[bytes]) -> None:
    """It may end at any moment, before it is discarded."""
    suspension = Suspension()
    suspension.add(process)
    process.kill()
    process.wait(PATIENCE)
    suspension.hold()
    suspension.release()
    suspension.end()
