"""`paddlepool segment` and `paddlepool sentiment` against a real server."""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.e2e.process import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.paddle]


def command(
    *arguments: object, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "app.cli", *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | (environment or {}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow
def test_without_a_server_the_models_are_loaded_for_the_command(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    shutil.copytree(ROOT / "model_repo" / "emotion", repository / "emotion")
    environment = {"PADDLEPOOL_MODEL_REPOSITORY": str(repository), "PADDLEPOOL_API_KEYS": "k"}
    done = command("sentiment", "今天真开心！", "--local", environment=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("happy    快乐")
    left = [each for each in processes() if str(repository).encode() in each]
    assert left == []
    environment["PADDLEPOOL_MODEL_REPOSITORY"] = str(tmp_path / "absent")
    done = command("sentiment", "今天真开心！", "--local", environment=environment)
    assert done.returncode == 1
    assert "there is no model repository at" in done.stderr.splitlines()[-1]


def processes() -> list[bytes]:
    """The environment of every process of ours."""
    found = []
    for each in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            found.append(each.read_bytes())
    return found
