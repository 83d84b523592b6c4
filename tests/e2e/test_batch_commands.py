"""`paddlepool sentiment --local`, with a server of its own."""

import contextlib
import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.e2e.process import ROOT
from tests.ran import ran

pytestmark = [pytest.mark.e2e, pytest.mark.paddle]


@pytest.mark.slow
def test_without_a_server_the_models_are_loaded_for_the_command(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    shutil.copytree(ROOT / "model_repo" / "emotion", repository / "emotion")
    environment = {"PADDLEPOOL_MODEL_REPOSITORY": str(repository), "PADDLEPOOL_API_KEYS": "k"}
    command = [sys.executable, "-m", "paddlepool.cli", "sentiment", "今天真开心！", "--local"]
    done = ran(command, env=os.environ | environment)
    assert done.stdout.startswith("happy    快乐")
    left = [process for process in processes() if str(repository).encode() in process]
    assert left == []
    environment["PADDLEPOOL_MODEL_REPOSITORY"] = str(tmp_path / "absent")
    done = ran(command, env=os.environ | environment, check=False)
    assert done.returncode == 1
    assert "there is no model repository at" in done.stderr.splitlines()[-1]


def processes() -> list[bytes]:
    """The environment of every process of ours."""
    environments = []
    for process in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            environments.append(process.read_bytes())
    return environments
