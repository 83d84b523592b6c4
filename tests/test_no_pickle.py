"""Only static models are served: nothing in the service can be made to unpickle a file (A8)."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "app").rglob("*.py"))

UNPICKLERS = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
LOADERS = {
    "paddle.load",
    "paddle.framework.load",
    "paddle.load_program_state",
    "paddle.static.load",
    "paddle.static.load_program_state",
    "paddle.static.set_program_state",
    "paddle.jit.load",
    "torch.load",
    "torch.jit.load",
}
BARE = {"load_program_state", "load_state_dict_from_url", "Unpickler", "read_pickle"}


def dotted(node: ast.expr) -> str:
    """`a.b.c` of an attribute chain; empty where it does not start with a name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def dangers(source: str) -> Iterator[str]:
    """What in a module could run code out of a file, by line."""
    tree = ast.parse(source)
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            aliases |= {a.asname: a.name for a in node.names if a.asname}
            for alias in node.names:
                if alias.name.split(".")[0] in UNPICKLERS:
                    yield f"line {node.lineno}: import {alias.name}"
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                aliases[alias.asname or alias.name] = name
                if node.module.split(".")[0] in UNPICKLERS or name in LOADERS or alias.name in BARE:
                    yield f"line {node.lineno}: from {node.module} import {alias.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            head, _, rest = dotted(node).partition(".")
            name = f"{aliases.get(head, head)}.{rest}"
            if name in LOADERS or node.attr in BARE:
                yield f"line {node.lineno}: {name}"
        if isinstance(node, ast.Call):
            head, _, rest = dotted(node.func).partition(".")
            if f"{aliases.get(head, head)}.{rest}".rstrip(".") == "numpy.load":
                allow = {k.arg: k.value for k in node.keywords}.get("allow_pickle")
                if not (isinstance(allow, ast.Constant) and allow.value is False):
                    yield f"line {node.lineno}: numpy.load without allow_pickle=False"
            elif any(
                k.arg == "allow_pickle"
                and not (isinstance(k.value, ast.Constant) and k.value.value is False)
                for k in node.keywords
            ):
                yield f"line {node.lineno}: allow_pickle"


def test_nothing_in_the_package_can_unpickle() -> None:
    """One function calls `paddle.jit.load`, and refuses a file that it would unpickle."""
    found = {
        f"{path.relative_to(ROOT)}: {each.partition(': ')[2]}"
        for path in SOURCES
        for each in dangers(path.read_text("utf-8"))
    }
    assert found == {"app/models/networks/saved.py: paddle.jit.load"}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import paddle\npaddle.jit.load('x')",
        "import torch as t\nt.load('x')",
        "from paddle import load",
        "import paddle\npaddle.static.load_program_state('x')",
        "import numpy as np\nnp.load('x.npz')",
        "import numpy as np\nnp.load('x.npz', allow_pickle=True)",
        "from numpy import load\nload('x.npz')",
    ],
)
def test_the_check_sees_each_way_in(source: str) -> None:
    assert list(dangers(source))
