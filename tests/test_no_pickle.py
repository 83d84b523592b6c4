"""Only static models are served: nothing in the service can be made to unpickle a file (A8)."""

import re

import pytest

from tests.ran import ROOT

SOURCES = sorted((ROOT / "app" / "paddlepool").rglob("*.py"))
DANGERS = re.compile(
    r"(?:import|from) (?:c?_?[pP]ickle|dill|cloudpickle|joblib|shelve|marshal)\b"
    r"|\b(?:paddle(?:\.framework|\.static|\.jit)?|torch(?:\.jit)?)\.load\("
    r"|from (?:paddle|torch)[\w.]* import [^\n]*\bload\b"
    r"|(?:load|set)_program_state|load_state_dict_from_url|Unpickler|read_pickle"
    r"|allow_pickle *= *(?!False)\w+"  # left out, NumPy unpickles nothing
)


def dangers(source: str) -> list[str]:
    """What in a module could run code out of a file, comments and strings included."""
    return [match[0] for match in DANGERS.finditer(source)]


@pytest.mark.parametrize(
    "source",
    [
        *("import pickle", "from cPickle import loads", "import _pickle", "from dill import load"),
        *("import cloudpickle", "from joblib import load", "import shelve", "import marshal"),
        *("paddle.load(", "paddle.framework.load(", "paddle.static.load(", "paddle.jit.load("),
        *("torch.load(", "torch.jit.load(", "from paddle.framework import (io, load)"),
        *("load_program_state", "set_program_state", "load_state_dict_from_url"),
        *("Unpickler", "read_pickle", "allow_pickle=True", "allow_pickle = trusted"),
    ],
)
def test_every_danger_is_found(source: str) -> None:
    assert dangers(source)
    assert not dangers("np.load(file, allow_pickle=False); json.loads(text)")


def test_no_text_of_others_is_read_by_orjson() -> None:
    """It keeps names of members, and one sender could change how texts of others are read."""
    assert not [
        path
        for path in SOURCES
        if re.search(r"orjson\.loads\(|orjson import .*loads", path.read_text("utf-8"))
    ]


def test_nothing_in_the_package_can_unpickle() -> None:
    """One function calls `paddle.jit.load`, and refuses a file that it would unpickle."""
    calls = {
        (str(path.relative_to(ROOT)), call)
        for path in SOURCES
        for call in dangers(path.read_text("utf-8"))
    }
    assert calls == {("app/paddlepool/models/networks/__init__.py", "paddle.jit.load(")}
