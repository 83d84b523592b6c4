"""The `paddlepool` command without one of its parts."""

from __future__ import annotations

import sys

import pytest

from app.cli import main


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
