"""The `paddlepool` command without one of its parts."""

import argparse
import errno
import os
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from paddlepool.cli import COMMANDS, main
from tests.ran import ROOT


@pytest.mark.parametrize(
    ("missing", "hint"),
    [
        ("paddlepool_client", "the Python client: pip install ./clients/python"),
        ("tqdm", "tqdm: pip install tqdm"),
    ],
)
def test_a_missing_part_of_the_client_is_named(
    missing: str, hint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in [name for name in sys.modules if name.startswith("paddlepool_client")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, missing, None)
    for command in ("segment", "sentiment"):
        assert main([command, "x"]) == 1
        assert capsys.readouterr().err == f"paddlepool {command}: needs {hint}\n"


def command_of(monkeypatch: pytest.MonkeyPatch, run: Callable[[argparse.Namespace], int]) -> None:
    """Make `pull` a command that takes texts and does this."""

    def configure(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("texts", nargs="+")

    module = SimpleNamespace(__doc__="", configure=configure, run=run)
    monkeypatch.setitem(sys.modules, "paddlepool.cli.pull", module)


def test_what_the_system_refuses_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A full disk is no fault of the program, and no matter for its authors."""

    def run(args: argparse.Namespace) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    command_of(monkeypatch, run)
    assert main(["pull", "x"]) == 1
    expected = "paddlepool pull: [Errno 28] No space left on device\n"
    assert capsys.readouterr().err == expected


def test_a_command_reads_its_own_dashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands behind `--` is no option: a text may begin with a dash."""
    seen: list[list[str]] = []

    def run(args: argparse.Namespace) -> int:
        seen.append(args.texts)
        return 0

    command_of(monkeypatch, run)
    assert main(["pull", "--", "-_-"]) == 0
    assert seen == [["-_-"]]


def test_a_reader_that_has_enough_ends_a_command_quietly() -> None:
    """As `paddlepool models list | head -1`: what is printed goes nowhere, and nobody complains."""
    source, sink = os.pipe()
    os.close(source)
    with os.fdopen(sink, "wb") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "paddlepool.cli", "models", "list"],
            stdout=closed,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            check=False,
        )
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("command", COMMANDS)
def test_no_default_lies_outside_of_a_users_machine(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A default is there for everybody, or the option is required."""
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert "../" not in capsys.readouterr().out
