"""What the packages import is what pyproject.toml declares: a clean install can start."""

from __future__ import annotations

import ast
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
OURS = {"app", "paddlepool_client"}  # the second is installed from clients/python, by its path
# Imported only when an instance group or a command asks for it.
EXTRAS = ("onnx", "compare", "sources", "heic", "quantize")


def imported(file: Path) -> set[str]:
    """Top-level names of the modules that a file imports, wherever in it."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
    return names


def test_every_package_that_is_imported_is_declared() -> None:
    """Also those that another dependency brings along today."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = [line for extra in EXTRAS for line in project["optional-dependencies"][extra]]
    lines = [*project["dependencies"], *extras]
    declared = {canonicalize_name(Requirement(line).name) for line in lines}
    owners = packages_distributions()
    undeclared = {
        f"{name} ({file.relative_to(ROOT)})"
        for file in (ROOT / "app").rglob("*.py")
        for name in imported(file) - set(sys.stdlib_module_names) - OURS
        if not declared & {canonicalize_name(owner) for owner in owners.get(name, [name])}
    }
    assert undeclared == set()


def test_what_the_client_needs_is_declared_by_the_server_too() -> None:
    """It is installed beside the server without its dependencies: the lock must have them."""
    mine, its = (
        tomllib.loads((ROOT / directory / "pyproject.toml").read_text("utf-8"))["project"]
        for directory in (".", "clients/python")
    )
    assert its["dependencies"] == ["httpx>=0.28"]
    assert set(its["dependencies"]) <= set(mine["dependencies"])
    assert its["requires-python"] == ">=3.11"
    assert (ROOT / "clients/python/LICENSE").read_text() == (ROOT / "LICENSE").read_text()


def test_the_python_versions_are_those_that_pip_takes() -> None:
    """README, Makefile and docs/deployment.md name the range of requires-python."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    taken = SpecifierSet(project["requires-python"])
    minors = [minor for minor in range(100) if f"3.{minor}.0" in taken]
    first, last = minors[0], minors[-1]
    assert minors == list(range(first, last + 1))
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert f"(3, {first}) <= sys.version_info < (3, {last + 1})" in makefile
    assert makefile.count(f"3.{first} to 3.{last}") == 2
    assert f"Python 3.{first} to 3.{last} " in (ROOT / "README.md").read_text("utf-8")
    assert f"3.{first} to 3.{last}," in (ROOT / "docs" / "deployment.md").read_text("utf-8")
