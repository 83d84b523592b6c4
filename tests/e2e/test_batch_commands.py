"""The commands of the client with a real server: a running one, or one of their own."""

import base64
import contextlib
import os
import shutil
import sys
from pathlib import Path

import pytest

from paddlepool.tasks.classify.router import DRAWN_SEVEN
from tests.e2e.process import ROOT, Server
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


def test_a_drawing_is_a_digit(full_server: Server, tmp_path: Path) -> None:
    """With the real server and the model of the repository."""
    seven = tmp_path / "in" / "seven.png"
    seven.parent.mkdir()
    seven.write_bytes(base64.b64decode(DRAWN_SEVEN))
    command = [sys.executable, "-m", "paddlepool.cli", "classify", "--url", full_server.url]
    assert ran([*command, str(seven)]).stdout.split()[0] == "7"
    table = tmp_path / "labels.csv"
    ran([*command, str(seven.parent), "-o", str(table)])
    header, row = table.read_text("utf-8").splitlines()
    assert header == "picture,label,class_id,score,error"
    assert row.startswith("seven.png,7,7,0.")


def processes() -> list[bytes]:
    """The environment of every process of ours."""
    environments = []
    for process in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            environments.append(process.read_bytes())
    return environments
