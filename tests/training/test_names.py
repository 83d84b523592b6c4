"""What training takes of the application exists; nothing is imported, as training needs torch."""

import ast
import symtable
from pathlib import Path

import pytest

from tests.ran import ROOT

MODULES = sorted((ROOT / "training").rglob("*.py"))


def names_of(module: str) -> set[str]:
    """The global names of a module of the application, and its submodules."""
    place = ROOT.joinpath(*module.split("."))
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    names = symtable.symtable(file.read_text("utf-8"), str(file), "exec").get_identifiers()
    return {*names, *(each.stem for each in place.glob("*"))}


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imported_names_exist(module: Path) -> None:
    for node in ast.walk(ast.parse(module.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("app."):
            assert {name.name for name in node.names} <= names_of(node.module or "")
