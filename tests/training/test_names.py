"""What training takes of the application exists; nothing is imported, as training needs torch."""

import ast
import symtable

from tests.ran import ROOT

MODULES = sorted((ROOT / "training").rglob("*.py"))


def names_of(module: str) -> set[str]:
    """The global names of a module of the application, and its submodules."""
    place = ROOT.joinpath("app", *module.split("."))
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    names = symtable.symtable(file.read_text("utf-8"), str(file), "exec").get_identifiers()
    return {*names, *(path.stem for path in place.glob("*"))}


def test_imported_names_exist() -> None:
    checked = 0
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("paddlepool."):
                assert {name.name for name in node.names} <= names_of(str(node.module)), path
                checked += 1
    assert checked
