"""Which repository is served where none was chosen, and how the user's own is made."""

import shutil
from pathlib import Path

import pytest

from paddlepool.models.repository.files import fill, located, untouched, user_repository


def make(root: Path, *files: str) -> Path:
    for name in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    return root


def files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def test_the_users_repository_follows_the_base_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative XDG_DATA_HOME is ignored, as the specification asks."""
    monkeypatch.setenv("HOME", str(tmp_path))
    default = tmp_path / ".local" / "share" / "paddlepool" / "model_repo"
    for value in ("", "relative"):
        monkeypatch.setenv("XDG_DATA_HOME", value)
        assert user_repository() == default
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert user_repository() == Path("/data/paddlepool/model_repo")


def test_a_user_without_a_home_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    assert user_repository() is None
    assert located(Path("nowhere"), chosen=False) == Path("nowhere")


def test_the_users_repository_is_taken_only_where_nothing_else_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    here, own = tmp_path / "model_repo", tmp_path / "data" / "paddlepool" / "model_repo"
    assert located(here, chosen=False) == here
    own.mkdir(parents=True)
    assert located(here, chosen=False) == own
    assert located(here, chosen=True) == here
    here.mkdir()
    assert located(here, chosen=False) == here


def test_a_repository_appears_complete_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = make(tmp_path / "models", "a/config.toml", "a/1/manifest.json", ".staging-b/1/x")
    (models / "a" / "config.toml").chmod(0o400)
    root = tmp_path / "data" / "model_repo"
    with monkeypatch.context() as full:
        full.setattr(shutil, "copyfile", lambda *_args, **_options: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            fill(root, models)
    assert list(root.parent.iterdir()) == []
    fill(root, models)
    assert files(root) == {"a/config.toml", "a/1/manifest.json"}
    assert list(root.parent.iterdir()) == [root]
    (root / "a" / "config.toml").write_text("mine")  # whatever the mode of what was installed
    with pytest.raises(OSError, match="not empty"):
        fill(root, models)
    assert (root / "a" / "config.toml").read_text() == "mine"


def test_a_model_with_another_version_is_not_as_shipped(tmp_path: Path) -> None:
    models = make(tmp_path / "models", "a/config.toml", "a/1/manifest.json")
    own = tmp_path / "own"
    fill(own, models)
    assert untouched(own / "a", models)
    assert not untouched(own / "b", models)
    make(own, "a/2/manifest.json")
    assert not untouched(own / "a", models)
