"""`paddlepool serve` where no model repository is named or there."""

import json
import logging
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.cli import first_start
from app.cli.first_start import repository
from app.cli.shared import repository_root
from app.contracts.errors import ConfigError
from app.making.export.release import U2NETP_RELEASE
from app.settings.server import Settings


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory to start in; the place of the user's repository, which is not there."""
    models = tmp_path / "shipped"
    (models / "u2netp" / "1").mkdir(parents=True)
    (models / "u2netp" / "config.toml").write_text("shipped")
    monkeypatch.setattr(first_start, "shipped_models", lambda: models)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    return tmp_path / "data" / "paddlepool" / "model_repo"


@pytest.fixture
def pulls(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Commands that were started; each says a line and does nothing."""
    commands: list[list[str]] = []

    def run(command: list[str], **_options: Any) -> Any:
        commands.append(command)
        return SimpleNamespace(stdout="", stderr="cannot be had\n")

    monkeypatch.setattr(subprocess, "run", run)
    return commands


def test_the_first_start_fills_the_users_repository(
    own: Path, pulls: list[list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    """It takes the official weights as `make run` does, and the log says where everything is."""
    caplog.set_level(logging.INFO)
    assert repository(Settings()) == own
    assert (own / "u2netp" / "config.toml").read_text() == "shipped"
    [command] = pulls
    wanted = ["pull", "u2netp", "--if-possible", "--timeout", "15", "--repository", str(own)]
    assert command[-7:] == wanted
    assert f"the model repository is {own}" in caplog.messages
    assert "cannot be had" in caplog.messages


def test_the_other_commands_find_it(own: Path, pulls: list[list[str]]) -> None:
    assert repository_root(None) == Path("model_repo")
    repository(Settings())
    assert repository_root(None) == own
    assert repository_root(Path("given")) == Path("given")


def test_a_later_start_changes_nothing(own: Path, pulls: list[list[str]]) -> None:
    """Only preview weights are tried to be replaced, and only while nobody has added a version."""
    repository(Settings())
    (own / "u2netp" / "config.toml").write_text("mine")
    repository(Settings())
    assert (own / "u2netp" / "config.toml").read_text() == "mine"
    assert len(pulls) == 2
    (own / "u2netp" / "7").mkdir()
    repository(Settings())
    shutil.rmtree(own / "u2netp")
    assert repository(Settings()) == own
    assert list(own.iterdir()) == []
    assert len(pulls) == 2


def test_official_weights_that_are_there_are_not_looked_for(
    own: Path, pulls: list[list[str]], tmp_path: Path
) -> None:
    manifest = {"weights": {"sha256": U2NETP_RELEASE.sha256}}
    version = tmp_path / "shipped" / "u2netp" / "1"
    (version / "manifest.json").write_text(json.dumps(manifest))
    repository(Settings())
    assert pulls == []


def test_a_chosen_repository_is_taken_as_it_is(
    own: Path, pulls: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the option, by the setting, with a model source, or as ./model_repo of a checkout."""
    assert repository(Settings(model_repository=Path("model_repo"))) == Path("model_repo")
    assert repository(Settings(model_source="s3://models/all")) == Path("model_repo")
    with monkeypatch.context() as setting:
        setting.setenv("PADDLEPOOL_MODEL_REPOSITORY", "elsewhere")
        assert repository(Settings()) == Path("elsewhere")
    Path("model_repo").mkdir()
    assert repository(Settings()) == Path("model_repo")
    assert not own.exists()
    assert pulls == []


def test_a_directory_that_cannot_be_made_is_named(own: Path, pulls: list[list[str]]) -> None:
    own.parents[1].write_text("a file")
    with pytest.raises(ConfigError, match=f"cannot make a model repository at {own}"):
        repository(Settings())


def test_a_program_without_models_asks_for_a_repository(
    own: Path, pulls: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_start, "shipped_models", lambda: None)
    assert repository(Settings()) == Path("model_repo")
    own.mkdir(parents=True)
    assert repository(Settings()) == own
