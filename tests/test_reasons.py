"""The reasons that are counted: those the code gives and those that are declared are equal sets."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from app.contracts.reasons import CODEC_RESTARTS, REJECTIONS, RESTARTS

APP = Path(__file__).parents[1] / "app"
CHILD = "process/child.py"


def nodes(*files: str) -> Iterator[ast.AST]:
    for file in files:
        yield from ast.walk(ast.parse((APP / file).read_text("utf-8")))


def words(value: ast.expr | None) -> Iterator[str]:
    """The words that an expression may come to, without looking into what it calls or tests."""
    match value:
        case ast.Constant(value=str(word)) if re.fullmatch("[a-z_]+", word):
            yield word
        case ast.IfExp():
            yield from words(value.body)
            yield from words(value.orelse)
        case ast.BoolOp():
            for each in value.values:
                yield from words(each)
        case ast.Tuple():
            for each in value.elts:
                yield from words(each)
        case ast.Call():
            for each in value.args:
                yield from words(each)


def rejections(*files: str) -> Iterator[str]:
    """The first argument of each refusal and report, and `reason=` where an observer is told."""
    for node in nodes(*files):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in ("Refused", "self._on_rejected"):
                yield from words(node.args[0])
            elif called.endswith(".rejected"):
                for keyword in node.keywords:
                    if keyword.arg == "reason":
                        yield from words(keyword.value)


def losses(*files: str) -> Iterator[str]:
    """Why a child is lost: what ChildDied is made with, what functions that return a reason or
    None return, and what is kept as the reason."""
    for node in nodes(*files):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in (
            "ChildDied",
            "super().__init__",
        ):
            yield from words(node.args[0])
        elif isinstance(node, ast.FunctionDef) and "str | None" in ast.unparse(
            node.returns or ast.Constant(None)
        ):
            for inner in ast.walk(node):
                if isinstance(inner, ast.Return):
                    yield from words(inner.value)
        elif isinstance(node, ast.Assign):
            target = ast.unparse(node.targets[0])
            if "reason" in target or target == "self._failure":
                yield from words(node.value)


def test_every_rejection_is_declared_and_every_declared_one_happens() -> None:
    """What the batcher and the groups report."""
    files = [str(path.relative_to(APP)) for path in (APP / "engine").rglob("*.py")]
    assert set(rejections(*files)) == set(REJECTIONS)


def test_every_loss_of_a_predictor_is_declared_and_every_declared_one_happens() -> None:
    """Told by the child process, its predictor and the instance that owns it."""
    found = set(losses(CHILD, "backends/process.py", "engine/pool/instance.py"))
    assert found == set(RESTARTS)


def test_every_loss_of_a_codec_process_is_declared_and_every_declared_one_happens() -> None:
    """Told by the child process, the call in it and the pool."""
    assert set(losses(CHILD, "codecs/call.py", "codecs/pool.py")) == set(CODEC_RESTARTS)
