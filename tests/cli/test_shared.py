"""Which repository a command works on: the option's, else the setting's."""

from pathlib import Path

import pytest

from app.cli import main
from app.cli.shared import repository_root


def test_the_option_wins_over_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    assert repository_root(None) == Path("model_repo")
    monkeypatch.setenv("PADDLEPOOL_MODEL_REPOSITORY", "set")
    assert repository_root(None) == Path("set")
    assert repository_root(Path("given")) == Path("given")


@pytest.mark.parametrize("command", ["models list", "pull u2netp", "graph u2netp"])
def test_a_wrong_setting_ends_a_command_with_one_line(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PADDLEPOOL_PORT", "x")
    assert main(command.split()) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert "PADDLEPOOL_PORT" in line
    assert "received 'x'" in line
