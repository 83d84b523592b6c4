"""What the packages import is what pyproject.toml declares: a clean install can start."""

import re
import shutil
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests.deploy.conftest import Script
from tests.ran import ROOT, ran
from tests.test_imports import ALL

OWN_PACKAGES = {
    "paddlepool",
    "paddlepool_client",
}  # the second by its path
# Imported only when an instance group or a command asks for it.
EXTRAS = ("onnx", "compare", "sources", "heic", "quantize", "grpc", "ray", "otel")


@pytest.mark.slow
def test_every_package_that_is_imported_is_declared() -> None:
    """Also those that another dependency brings along today."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = [line for extra in EXTRAS for line in project["optional-dependencies"][extra]]
    lines = [*project["dependencies"], *extras]
    declared = {canonicalize_name(Requirement(line).name) for line in lines}
    owners = packages_distributions()
    undeclared = []
    for entry in ALL:
        name = entry.imported.partition(".")[0]
        packages = {canonicalize_name(owner) for owner in owners.get(name, [name])}
        if name not in {*sys.stdlib_module_names, *OWN_PACKAGES} and not declared & packages:
            undeclared.append(str(entry))
    assert undeclared == []


def test_what_the_client_needs_is_declared_by_the_server_too() -> None:
    """It is installed beside the server without its dependencies: the lock must have them."""
    mine, its = (
        tomllib.loads((ROOT / directory / "pyproject.toml").read_text("utf-8"))["project"]
        for directory in (".", "clients/python")
    )
    assert its["dependencies"] == ["httpx>=0.28"]
    needed = [*its["dependencies"], *its["optional-dependencies"]["commands"]]
    assert {Requirement(line).name for line in needed} == {"httpx", "tqdm"}
    assert set(needed) <= set(mine["dependencies"])
    assert its["requires-python"] == ">=3.10"
    assert (ROOT / "clients/python/LICENSE").read_text() == (ROOT / "LICENSE").read_text()


def test_the_python_versions_are_those_that_pip_takes() -> None:
    """README, Makefile and docs/deployment.md name the range of requires-python."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    supported = SpecifierSet(project["requires-python"])
    minors = [minor for minor in range(100) if f"3.{minor}.0" in supported]
    first, last = minors[0], minors[-1]
    assert minors == list(range(first, last + 1))
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert f"(3, {first}) <= sys.version_info < (3, {last + 1})" in makefile
    assert makefile.count(f"3.{first} to 3.{last}") == 2
    assert f"Python 3.{first} to 3.{last}," in (ROOT / "README.md").read_text("utf-8")
    assert f"3.{first} to 3.{last}," in (ROOT / "docs" / "deployment.md").read_text("utf-8")


def locked(name: str) -> dict[str, str]:
    """Each entry of a lock by its first line, the package with its version and marker."""
    text = (ROOT / name).read_text("utf-8")
    assert "://" not in text  # a lock names no host
    entries = {}
    for entry in re.split(r"^(?=[a-z])", text, flags=re.M):
        if entry:
            entries[entry.splitlines()[0]] = entry
    return entries


def test_what_serves_is_a_part_of_the_complete_lock(script: Script) -> None:
    """The same versions and hashes, enough for what the server declares, and no tool of tests."""
    serving, complete = locked("requirements.serve.lock"), locked("requirements.lock")
    assert serving.items() < complete.items()
    names = {re.split("[=@ ]", line)[0] for line in serving}
    needed = script("deploy/container/keep.py").needed
    own = {"paddlepool", "paddlepool-client"}
    assert needed(["paddlepool[onnx,heic]", "paddlepool-client"]) - names == own
    assert not names & {"pytest", "playwright", "mypy", "ruff", "hypothesis", "matplotlib"}


def test_ray_is_installed_beside_what_the_complete_lock_has() -> None:
    """No package in two versions, and nothing of Ray's among what everybody installs."""
    beside, complete = (
        dict(line.split(" ")[0].split("==") for line in locked(name) if "==" in line)
        for name in ("requirements.ray.lock", "requirements.lock")
    )
    assert "ray" in beside.keys() - complete.keys()
    shared = beside.keys() & complete.keys()
    assert {name: beside[name] for name in shared} == {name: complete[name] for name in shared}


def test_the_image_has_what_a_plain_installation_has(script: Script) -> None:
    """Every format and engine that `make run` serves, the image serves, too."""
    roots = re.findall(r"keep\.py '(paddlepool\S+)'", (ROOT / "Dockerfile").read_text("utf-8"))
    needed = script("deploy/container/keep.py").needed
    assert needed(["paddlepool[onnx,heic]"]) <= needed(roots)


def test_a_first_run_installs_what_serving_needs_and_a_first_test_the_rest(tmp_path: Path) -> None:
    """Whoever has everything installs nothing more to serve."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("requirements.lock", "requirements.serve.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "clients" / "python").mkdir(parents=True)
    shutil.copy(ROOT / "clients/python/pyproject.toml", tmp_path / "clients/python")

    def steps(target: str) -> list[str]:
        done = ran(["make", "--no-print-directory", "-n", target], cwd=tmp_path)
        words = r"requirement (\S+)|(paddlepool serve|pytest)"
        return [one or two for one, two in re.findall(words, done.stdout)]

    assert steps("run") == ["requirements.serve.lock", "paddlepool serve"]
    assert steps("test") == ["requirements.serve.lock", "requirements.lock", "pytest"]
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / ".serving").touch()
    assert steps("run") == ["paddlepool serve"]
    assert steps("test") == ["requirements.lock", "pytest"]
    (tmp_path / ".venv" / ".serving").unlink()
    (tmp_path / ".venv" / ".installed").touch()
    assert steps("run") == ["paddlepool serve"]
    assert steps("test") == ["pytest"]
