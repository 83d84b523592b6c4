"""training/mnist/README.md is true: every block runs, in order, and makes the model it tells of."""

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ran import ROOT, ran

pytestmark = [pytest.mark.paddle, pytest.mark.nightly]
PAGE = ROOT / "training" / "mnist" / "README.md"
DATA = ROOT.parent / "shared" / "data" / "mnist"


def blocks() -> list[tuple[str, str]]:
    """The page's fenced blocks as (language, text)."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def commands(word: str) -> str:
    """The one sh block of the page that starts with `word`."""
    (text,) = (text for language, text in blocks() if language == "sh" and text.startswith(word))
    return text


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A working directory with the project's code, the shared data and an empty repository."""
    if not DATA.exists():
        pytest.skip(f"no digits at {DATA}: training/mnist/README.md NOT checked")
    place = tmp_path_factory.mktemp("place")
    (place / "shared").symlink_to(ROOT.parent / "shared")
    (place / "project").mkdir()
    for name in ("app", "training"):
        (place / "project" / name).symlink_to(ROOT / name)
    yield place / "project"
    shutil.rmtree(place)


def shell(text: str, project: Path) -> str:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PYTHONWARNINGS": "ignore"}
    done = ran(
        ["bash", "-e", "-o", "pipefail", "-c", text], cwd=project, env=environment, timeout=600
    )
    return done.stdout


@pytest.fixture(scope="module")
def trained(project: Path) -> str:
    """What the training command of the page prints."""
    return shell(commands("python -m training.mnist.train"), project)


@pytest.fixture(scope="module")
def exported(project: Path, trained: str) -> Path:
    """The version that the export command of the page publishes."""
    shell(commands("paddlepool export"), project)
    return project / "model_repo" / "mnist" / "1"


def test_training(trained: str) -> None:
    accuracy = re.search(r"test accuracy ([\d.]+) on 2000 digits", trained)
    assert accuracy
    assert float(accuracy[1]) >= 0.88
    difference = re.search(r"dynamic, to_static and jit.load differ by at most (\S+)", trained)
    assert difference
    assert float(difference[1]) <= 1e-6
    for line in next(text for language, text in blocks() if language == "text").splitlines():
        assert line.split()[:2] == next(
            row.split()[:2] for row in trained.splitlines() if row.split()[0] == line.split()[0]
        )


def test_python_blocks(project: Path, exported: Path) -> None:
    assert exported.exists()
    script = "\n".join(text for language, text in blocks() if language == "python")
    assert script.count("assert ") == 3
    (project / "page.py").write_text(script, "utf-8")
    shell("python page.py", project)


def test_committed_model_is_the_documented_one(exported: Path) -> None:
    committed = ROOT / "model_repo" / "mnist"
    manifest, expected = (
        json.loads((version / "manifest.json").read_text("utf-8"))
        for version in (exported, committed / "1")
    )
    for key in ("inputs", "outputs", "network", "program", "params"):
        assert manifest[key] == expected[key]
    assert manifest["files"].keys() == expected["files"].keys()
    provenance = ("origin", "source", "licence", "preview")
    assert [manifest["weights"][key] for key in provenance] == [
        expected["weights"][key] for key in provenance
    ]
    config = "config.toml"
    assert (exported.parent / config).read_text() == (committed / config).read_text()
