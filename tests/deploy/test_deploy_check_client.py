"""The client is a distribution: it installs alone; the script that tests it on each Python."""

import shutil
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path
from types import ModuleType

import pytest
from packaging.specifiers import SpecifierSet

from tests.deploy.conftest import Script
from tests.ran import ROOT, ran

CLIENT = ROOT / "clients" / "python"


@pytest.fixture
def check(script: Script) -> ModuleType:
    return script("deploy/check_client.py")


def test_the_versions_are_those_that_pip_takes(check: ModuleType) -> None:
    project = tomllib.loads((CLIENT / "pyproject.toml").read_text("utf-8"))["project"]
    assert check.supported() == ["3.10", "3.11", "3.12", "3.13"]
    assert all(
        f"{version}.0" in SpecifierSet(project["requires-python"]) for version in check.supported()
    )
    assert "3.9.20" not in SpecifierSet(project["requires-python"])


def test_every_push_tests_each_of_them(check: ModuleType) -> None:
    """By name, so that a missing one fails."""
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8")
    named = " ".join(f"python{version}" for version in check.supported())
    assert f"deploy/check_client.py {named}\n" in workflow


def test_an_interpreter_is_found_for_this_version(check: ModuleType) -> None:
    """Each that is found can run and has the version that it is found for."""
    pythons = check.installed_pythons()
    mine = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert pythons[mine] == sys.executable
    assert {version: check.version_of(python) for version, python in pythons.items()} == {
        version: version for version in pythons
    }


def test_an_interpreter_that_cannot_run_is_named(
    check: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "python3.12"
    for _ in range(2):
        assert check.main([str(broken)]) == 1
        assert capsys.readouterr().err == f"cannot run: {broken}\n"
        broken.write_text("#!/bin/sh\nexit 127\n")
        broken.chmod(0o755)


ALONE = """
import importlib.util, sys
sys.path += sys.argv[1:]
import paddlepool_client
from importlib.metadata import distribution
there = distribution("paddlepool-client")
print(paddlepool_client.__file__)
print([name for name in ("paddle", "numpy", "PIL", "paddlepool") if importlib.util.find_spec(name)])
print(there.version == paddlepool_client.__version__)
print([line for line in there.requires if "extra" not in line])
print(there.metadata["License-Expression"])
print([(each.name, each.load().__name__) for each in there.entry_points])
"""


@pytest.mark.slow
def test_the_client_works_where_neither_the_server_nor_paddle_is(
    script: Script, tmp_path: Path
) -> None:
    """It is imported from what was installed, types and all; its metadata name httpx alone."""
    unwanted = shutil.ignore_patterns("*.egg-info", "build", "__pycache__")
    source = shutil.copytree(CLIENT, tmp_path / "source", ignore=unwanted)
    target, others = tmp_path / "installed", tmp_path / "others"
    # Without an index: the build takes the setuptools that is here.
    alone = ["--no-index", "--no-deps", "--no-build-isolation", "--target", target, source]
    ran([sys.executable, "-m", "pip", "install", "--quiet", *alone])
    others.mkdir()
    for name in script("deploy/container/keep.py").needed(["httpx", "tqdm"]):
        there = distribution(name)
        for top in {file.parts[0] for file in there.files or ()} - {"..", "__pycache__"}:
            (others / top).symlink_to(Path(str(there.locate_file(top))))
    # The standard library and these directories: -I -S leaves out everything else.
    output = ran([sys.executable, "-I", "-S", "-B", "-c", ALONE, target, others]).stdout
    package = target / "paddlepool_client"
    assert output.splitlines() == [
        *(str(package / "__init__.py"), "[]"),
        *("True", "['httpx>=0.28']", "Apache-2.0"),
        "[('paddlepool-client', 'main')]",
    ]
    assert (package / "py.typed").is_file()
