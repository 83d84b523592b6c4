"""Facts about Paddle that the design rests on, so that an upgrade is a decision."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import paddle
import pytest
from numpy.typing import NDArray

from tests.networks.conftest import Open

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
    silent, onednn, native = (
        open_program(mask_program, onednn=value)(small_picture)[0] for value in (None, True, False)
    )
    assert np.array_equal(silent, onednn)
    assert 0 < np.abs(onednn - native).max() <= 1e-4


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
