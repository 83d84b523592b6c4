"""The three facts about Paddle that the design rests on, so that an upgrade is a decision."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import paddle
import pytest
from numpy.typing import NDArray

from tests.networks.conftest import Open
from tests.networks.stopwatch import seconds

pytestmark = pytest.mark.paddle

_SHOW_PRIMITIVES = """
import sys, numpy
from paddle.inference import Config, create_predictor
config = Config(sys.argv[1] + "/inference.json", sys.argv[1] + "/inference.pdiparams")
config.disable_gpu(); config.enable_mkldnn()
predictor = create_predictor(config)
handle = predictor.get_input_handle("input")
handle.copy_from_cpu(numpy.zeros((1, 3, 160, 160), numpy.float32))
predictor.run()
"""


def test_version() -> None:
    """The facts below are those of the pinned version."""
    assert paddle.__version__ == "3.2.2"


def test_onednn_is_on_by_default(
    mask_program: Path, open_program: Open, small_picture: NDArray[np.float32]
) -> None:
    """A configuration that says nothing runs oneDNN, so 'native' must switch it off itself."""
    silent, native = (open_program(mask_program, onednn=value) for value in (None, False))
    default, slow = seconds(lambda: silent(small_picture), lambda: native(small_picture), rounds=3)
    assert slow / default >= 2.0


def test_run_releases_the_interpreter_lock(
    mask_program: Path, open_program: Open, small_picture: NDArray[np.float32]
) -> None:
    """Another Python thread goes on while a predictor runs: no gap near the length of a run.

    The machine may stop that thread, too, but not in every one of five runs.
    """
    run = open_program(mask_program, onednn=False)
    run(small_picture)
    assert any(_longest_gap(lambda: run(small_picture)) < 1 / 3 for _ in range(5))


def _longest_gap(work: Callable[[], object]) -> float:
    """Longest time in which this thread stood still while another worked, as a part of the work."""
    took: list[float] = []

    def timed() -> None:
        start = time.perf_counter()
        work()
        took.append(time.perf_counter() - start)

    thread = threading.Thread(target=timed)
    longest, last = 0.0, time.perf_counter()
    thread.start()
    while thread.is_alive():
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    assert took[0] > 0.1, "too short a run to tell"
    return longest / took[0]


def test_bilinear_resampling_runs_on_onednn(mask_program: Path) -> None:
    """Under PIR the upsampling of U²-Netp is a oneDNN primitive; Paddle 3.3 fails here."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _SHOW_PRIMITIVES, str(mask_program)],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"ONEDNN_VERBOSE": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    executed = [line for line in done.stdout.splitlines() if ",exec,cpu,resampling," in line]
    assert len(executed) == 38
