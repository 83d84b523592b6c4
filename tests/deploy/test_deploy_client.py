"""The client is a distribution: it installs alone, and its tests pass where nothing else is."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import distribution
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.slow  # builds a wheel and an environment

ROOT = Path(__file__).resolve().parents[2]
CLIENT = ROOT / "clients" / "python"
PATIENCE = 120.0


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A copy: a build leaves its results beside what it builds."""
    unwanted = shutil.ignore_patterns("*.egg-info", "build", "__pycache__")
    return shutil.copytree(CLIENT, tmp_path / "source", ignore=unwanted)


@pytest.fixture
def installed(source: Path, tmp_path: Path, script: Callable[[str], ModuleType]) -> list[Path]:
    """Two directories that are all there is: the client, installed, and what it and pytest need."""
    target, others = tmp_path / "installed", tmp_path / "others"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    # Without an index: the build takes the setuptools that is here.
    alone = ["--no-index", "--no-deps", "--no-build-isolation"]
    done = run([*pip, *alone, "--target", str(target), str(source)], tmp_path)
    assert done.returncode == 0, done.stderr
    others.mkdir()
    for name in script("deploy/container/keep.py").needed(["httpx", "pytest", "tqdm"]):
        there = distribution(name)
        for top in {file.parts[0] for file in there.files or ()} - {"..", "__pycache__"}:
            (others / top).symlink_to(Path(str(there.locate_file(top))))
    return [target, others]


def run(command: list[str], directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=directory, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def alone(program: str, paths: list[Path], directory: Path) -> str:
    """Run with the standard library and these directories: -I -S leaves out everything else."""
    head = f"import sys; sys.path += {[str(path) for path in paths]!r}\n"
    done = run([sys.executable, "-I", "-S", "-B", "-c", head + program], directory)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_client_works_where_neither_the_server_nor_paddle_is(
    source: Path, installed: list[Path], tmp_path: Path
) -> None:
    """It is imported from what was installed, types and all, its metadata name httpx and nothing
    else, and its own tests pass there."""
    said = alone(
        """
import importlib.util, paddlepool_client
from importlib.metadata import distribution
there = distribution("paddlepool-client")
print(paddlepool_client.__file__)
print([name for name in ("paddle", "numpy", "PIL", "app") if importlib.util.find_spec(name)])
print(there.version == paddlepool_client.__version__)
print([line for line in there.requires if "extra" not in line])
print(there.metadata["License-Expression"])
print([(each.name, each.load().__name__) for each in there.entry_points])
""",
        installed,
        tmp_path,
    )
    package = installed[0] / "paddlepool_client"
    assert said.splitlines() == [
        *(str(package / "__init__.py"), "[]"),
        *("True", "['httpx>=0.28']", "Apache-2.0"),
        "[('paddlepool-client', 'main')]",
    ]
    assert (package / "py.typed").is_file()
    tests = ["-q", "-p", "no:cacheprovider", str(source / "tests")]
    passed = alone(f"import pytest; sys.exit(pytest.main({tests!r}))", installed, tmp_path)
    assert " passed" in passed
