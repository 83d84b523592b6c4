"""Which repository a command works on: the option's, the setting's or the user's own."""

import errno
import json
import logging
import os
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paddlepool.cli import main
from paddlepool.cli.shared import quiet_children, repository_root, served_repository
from paddlepool.contracts.errors import ConfigError
from paddlepool.making.export.release import U2NETP_RELEASE
from paddlepool.models.repository import files
from paddlepool.settings.server import Settings


@pytest.fixture
def pulls(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Commands that were started; each says a line and does nothing."""
    commands: list[list[str]] = []

    def run(command: list[str], **_options: Any) -> Any:
        commands.append(command)
        return SimpleNamespace(stdout="", stderr="cannot be had\n")

    monkeypatch.setattr(subprocess, "run", run)
    return commands


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pulls: list[list[str]]) -> Path:
    """An empty directory to start in; the place of the user's repository, which is not there.
    Nothing is pulled."""
    models = tmp_path / "shipped"
    (models / "u2netp" / "1").mkdir(parents=True)
    (models / "u2netp" / "config.toml").write_text("shipped")
    monkeypatch.setattr(files, "shipped_models", lambda: models)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    return tmp_path / "data" / "paddlepool" / "model_repo"


def test_the_first_start_fills_the_users_repository(
    own: Path, pulls: list[list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    """It takes the official weights as `make run` does, and the log says where everything is."""
    caplog.set_level(logging.INFO)
    assert served_repository(Settings()) == own
    assert (own / "u2netp" / "config.toml").read_text() == "shipped"
    [command] = pulls
    wanted = ["pull", "u2netp", "--if-possible", "--timeout", "15", "--repository", str(own)]
    assert command[-7:] == wanted
    assert f"the model repository is {own}" in caplog.messages
    assert "cannot be had" in caplog.messages


def test_the_other_commands_find_it(own: Path) -> None:
    assert repository_root(None) == Path("model_repo")
    served_repository(Settings())
    assert repository_root(None) == own


def test_a_place_where_the_user_may_not_look_is_named(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = os.stat

    def stat(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        if str(path).startswith(str(own.parent)):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return look(path, *arguments, **options)

    own.parent.parent.mkdir(mode=0o500)
    own.parent.write_text("no directory")
    monkeypatch.setattr(os, "stat", stat)
    with pytest.raises(ConfigError, match=f"cannot make a model repository at {own}: "):
        served_repository(Settings())


def test_a_later_start_changes_nothing(own: Path, pulls: list[list[str]]) -> None:
    """Only preview weights are tried to be replaced, and only while nobody has added a version."""
    served_repository(Settings())
    (own / "u2netp" / "config.toml").write_text("mine")
    served_repository(Settings())
    assert (own / "u2netp" / "config.toml").read_text() == "mine"
    assert len(pulls) == 2
    (own / "u2netp" / "7").mkdir()
    served_repository(Settings())
    shutil.rmtree(own / "u2netp")
    assert served_repository(Settings()) == own
    assert list(own.iterdir()) == []
    assert len(pulls) == 2


def test_official_weights_that_are_there_are_not_looked_for(
    own: Path, pulls: list[list[str]], tmp_path: Path
) -> None:
    manifest = {"weights": {"sha256": U2NETP_RELEASE.sha256}}
    version = tmp_path / "shipped" / "u2netp" / "1"
    (version / "manifest.json").write_text(json.dumps(manifest))
    served_repository(Settings())
    assert pulls == []


def test_a_chosen_repository_is_taken_as_it_is(
    own: Path, pulls: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the option, by the setting, with a model source, or as ./model_repo of a checkout."""
    assert served_repository(Settings(model_repository=Path("model_repo"))) == Path("model_repo")
    assert served_repository(Settings(model_source="s3://models/all")) == Path("model_repo")
    with monkeypatch.context() as setting:
        setting.setenv("PADDLEPOOL_MODEL_REPOSITORY", "elsewhere")
        assert served_repository(Settings()) == Path("elsewhere")
    Path("model_repo").mkdir()
    assert served_repository(Settings()) == Path("model_repo")
    assert not own.exists()
    assert pulls == []


def test_a_directory_that_cannot_be_made_is_named(own: Path) -> None:
    own.parents[1].write_text("a file")
    with pytest.raises(ConfigError, match=f"cannot make a model repository at {own}"):
        served_repository(Settings())


def test_a_program_without_models_asks_for_a_repository(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "shipped_models", lambda: None)
    assert served_repository(Settings()) == Path("model_repo")
    own.mkdir(parents=True)
    assert served_repository(Settings()) == own


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


def test_what_children_print_is_logged_again_after_the_last_of_several_blocks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Blocks of two threads overlap, and the one that began first ends first."""
    child = logging.getLogger("paddlepool.child")
    first, second = quiet_children(), quiet_children()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    child.warning("a step")
    child.error("a failure")
    second.__exit__(None, None, None)
    child.warning("another step")
    assert caplog.messages == ["a failure", "another step"]
