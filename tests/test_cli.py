"""The `paddlepool` command without one of its parts."""

from __future__ import annotations

import argparse
import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from app.cli import main

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("command", ["segment", "sentiment"])
def test_without_the_client_its_commands_say_how_to_get_it(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line; it is installed from its directory and not by its name."""
    for module in (command, "at_server", "cut_out", "emotions"):
        monkeypatch.delitem(sys.modules, f"app.commands.{module}", raising=False)
    monkeypatch.setitem(sys.modules, "paddlepool_client", None)
    assert main([command, "x"]) == 1
    assert capsys.readouterr().err == (
        f"paddlepool {command}: needs the Python client: pip install ./clients/python\n"
    )


def test_a_part_that_is_missing_otherwise_is_no_matter_of_the_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A damaged installation must not be explained away."""
    for module in ("app.commands.segment", "app.commands.cut_out"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with pytest.raises(ModuleNotFoundError, match="tqdm"):
        main(["segment", "x"])


def command_of(monkeypatch: pytest.MonkeyPatch, run: Callable[[argparse.Namespace], int]) -> None:
    """Let `sentiment` be a command that takes texts and does this."""

    def configure(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("texts", nargs="+")

    module = SimpleNamespace(__doc__="", configure=configure, run=run)
    monkeypatch.setitem(sys.modules, "app.commands.sentiment", module)


def test_what_the_system_refuses_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A full disk is no fault of the program, and no matter for its authors."""

    def run(args: argparse.Namespace) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    command_of(monkeypatch, run)
    assert main(["sentiment", "x"]) == 1
    expected = "paddlepool sentiment: [Errno 28] No space left on device\n"
    assert capsys.readouterr().err == expected


def test_a_command_reads_its_own_dashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands behind `--` is no option: a text may begin with a dash."""
    seen: list[list[str]] = []

    def run(args: argparse.Namespace) -> int:
        seen.append(args.texts)
        return 0

    command_of(monkeypatch, run)
    assert main(["sentiment", "--", "-_-"]) == 0
    assert seen == [["-_-"]]


@pytest.mark.parametrize("arguments", [[], ["--url", "x"]])
def test_without_a_command_it_says_what_is_missing(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """And nothing of how it reads its arguments."""
    with pytest.raises(SystemExit):
        main(arguments)
    assert capsys.readouterr().err.splitlines()[-1] == (
        "paddlepool: error: the following arguments are required: COMMAND"
    )


def test_a_reader_that_has_enough_ends_a_command_quietly() -> None:
    """As `paddlepool models list | head -1`: what is printed goes nowhere, and nobody complains."""
    source, sink = os.pipe()
    os.close(source)
    with os.fdopen(sink, "wb") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "app.cli", "models", "list"],
            stdout=closed,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            check=False,
        )
    assert (done.returncode, done.stderr) == (141, b"")
