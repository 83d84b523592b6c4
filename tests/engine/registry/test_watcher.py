"""Poll mode: what changes on disk is loaded once, and what fails leaves the old version serving."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from app.contracts.errors import ConfigError
from app.contracts.ports import ServedModelInfo
from app.models.repository.layout import ModelRepository
from tests.engine.driving import Loop
from tests.engine.fakes import (
    PATIENCE,
    FakeFactory,
    open_registry,
    open_watcher,
    wait_until,
)
from tests.engine.permissions import mode
from tests.model_files import write_config, write_version


@pytest.fixture
def watcher(loop: Loop, tmp_path: Path, registry: Any) -> Any:
    return open_watcher(loop, tmp_path, registry)


def served(registry: Any) -> list[tuple[str, int]]:
    return [(model.name, model.version) for model in registry.served()]


def look(watcher: Any) -> None:
    """A change counts once two polls have seen it."""
    watcher.poll()
    watcher.poll()


def touch_config(tmp_path: Path, tail: str) -> None:
    config = tmp_path / "double" / "config.toml"
    config.write_text(config.read_text("utf-8") + tail, "utf-8")


def test_a_new_version_is_served_and_the_old_one_retired(
    tmp_path: Path, registry: Any, watcher: Any, factory: FakeFactory
) -> None:
    """Once: a second look changes nothing."""
    write_version(tmp_path / "double" / "2")
    look(watcher)
    assert served(registry) == [("double", 2)]
    assert factory.opened[0].closed.is_set()
    look(watcher)
    assert len(factory.opened) == 2


def test_a_configuration_that_is_being_written_counts_for_nothing(
    tmp_path: Path, registry: Any, watcher: Any, factory: FakeFactory
) -> None:
    """A poll may come between its truncation and its text; an empty file means the defaults."""
    write_version(tmp_path / "double" / "2")
    touch_config(tmp_path, '[version_policy]\nkind = "all"\n')
    look(watcher)
    config = tmp_path / "double" / "config.toml"
    text = config.read_text("utf-8")
    for change in ("# one\n", "# two\n"):
        config.write_text("", "utf-8")
        watcher.poll()
        config.write_text(text + change, "utf-8")
        watcher.poll()
    assert served(registry) == [("double", 2), ("double", 1)]
    opened = len(factory.opened)
    look(watcher)
    assert len(factory.opened) == opened + 2


def test_a_version_that_fails_is_tried_again_only_when_it_changes(
    tmp_path: Path, registry: Any, watcher: Any
) -> None:
    """The old one serves on, and the index says why the new one does not."""
    bad = write_version(tmp_path / "double" / "2")
    params = (bad / "inference.pdiparams").read_bytes()
    (bad / "inference.pdiparams").write_bytes(params[:-1])
    look(watcher)
    assert served(registry) == [("double", 1)]
    assert "inference.pdiparams" in registry.index()[0].reason
    (bad / "inference.pdiparams").write_bytes(params)
    look(watcher)  # the manifest, which is written last, has not changed
    assert served(registry) == [("double", 1)]
    (bad / "manifest.json").write_text((bad / "manifest.json").read_text("utf-8") + "\n", "utf-8")
    look(watcher)
    assert served(registry) == [("double", 2)]


def test_a_removed_version_makes_way_for_the_one_before(
    tmp_path: Path, registry: Any, watcher: Any
) -> None:
    """The newest that is left."""
    write_version(tmp_path / "double" / "2")
    look(watcher)
    shutil.rmtree(tmp_path / "double" / "2")
    look(watcher)
    assert served(registry) == [("double", 1)]


def test_a_new_model_appears_and_a_removed_one_goes(
    tmp_path: Path, registry: Any, watcher: Any
) -> None:
    """A model that is new and unfit does not make the server unready: nobody could use it yet."""
    write_config(tmp_path / "more", (tmp_path / "double" / "config.toml").read_text("utf-8"))
    write_version(tmp_path / "more" / "1")
    write_config(tmp_path / "unfit", "nonsense = 1")
    write_version(tmp_path / "unfit" / "1")
    look(watcher)
    assert served(registry) == [("double", 1), ("more", 1)]
    assert registry.ready()
    shutil.rmtree(tmp_path / "double")
    look(watcher)
    assert served(registry) == [("more", 1)]
    assert registry.ready()


def test_a_changed_policy_opens_only_what_is_missing(
    tmp_path: Path, registry: Any, watcher: Any, factory: FakeFactory
) -> None:
    """A version that is added later leaves its neighbours as they are."""
    write_version(tmp_path / "double" / "2")
    touch_config(tmp_path, '[version_policy]\nkind = "all"\n')
    look(watcher)
    assert served(registry) == [("double", 2), ("double", 1)]
    before = len(factory.opened)
    write_version(tmp_path / "double" / "3")
    look(watcher)
    assert served(registry) == [("double", 3), ("double", 2), ("double", 1)]
    assert len(factory.opened) == before + 1


def test_a_repository_that_cannot_be_read_retires_nothing(
    tmp_path: Path, registry: Any, watcher: Any
) -> None:
    """A disk that is away for a moment must not unload everything."""
    away = tmp_path.with_name(tmp_path.name + "-away")
    tmp_path.rename(away)
    with pytest.raises(ConfigError):
        look(watcher)
    assert served(registry) == [("double", 1)]
    away.rename(tmp_path)
    look(watcher)
    assert served(registry) == [("double", 1)]


@pytest.mark.parametrize(
    "where",
    [lambda root: root / "double", lambda root: root / "double" / "1"],
    ids=["model", "version"],
)
def test_a_model_that_cannot_be_read_for_a_moment_is_kept(
    tmp_path: Path,
    loop: Loop,
    registry: Any,
    watcher: Any,
    factory: FakeFactory,
    where: Callable[[Path], Path],
) -> None:
    """The others are looked at all the same, and it is not loaded again when it can be read."""
    write_config(tmp_path / "more", (tmp_path / "double" / "config.toml").read_text("utf-8"))
    write_version(tmp_path / "more" / "1")
    with loop(mode, where(tmp_path), 0):
        look(watcher)
        assert served(registry) == [("double", 1), ("more", 1)]
        assert ("more", 1) in [(status.name, status.version) for status in registry.index()]
    look(watcher)
    assert served(registry) == [("double", 1), ("more", 1)]
    assert len(factory.opened) == 2


def test_a_load_that_cannot_read_is_tried_again(
    loop: Loop,
    tmp_path: Path,
    registry: Any,
    watcher: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """And does not keep the models after it from being loaded."""
    config = (tmp_path / "double" / "config.toml").read_text("utf-8")
    for name in ("a", "more"):
        write_config(tmp_path / name, config)
        write_version(tmp_path / name / "1")
    with loop(mode, tmp_path / "a" / "config.toml", 0):
        look(watcher)
        assert served(registry) == [("double", 1), ("more", 1)]
    [warning] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warning.startswith("a stays unchanged for now: ")
    assert "config.toml" in warning
    look(watcher)
    assert served(registry) == [("a", 1), ("double", 1), ("more", 1)]


def test_a_fault_of_ours_costs_one_model(
    loop: Loop, tmp_path: Path, factory: FakeFactory, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged whole; the next model is loaded."""

    async def build(info: ServedModelInfo) -> None:
        if info.name == "a":
            raise RuntimeError("a bug")

    registry = open_registry(loop, tmp_path, factory, build_pipeline=build)
    watcher = open_watcher(loop, tmp_path, registry)
    for name in ("a", "more"):
        write_config(tmp_path / name, '[[instance_group]]\nname = "onednn"\nbackend = "fake"\n')
        write_version(tmp_path / name / "1")
    look(watcher)
    assert served(registry) == [("more", 1)]
    assert "RuntimeError: a bug" in caplog.text
    registry.close()


def test_the_names_are_those_that_the_repository_lists(tmp_path: Path) -> None:
    """Whether a model itself can be looked at is another question; a repository that cannot be
    listed is a ConfigError."""
    write_version(tmp_path / "double" / "1")
    (tmp_path / "link").symlink_to("double")
    (tmp_path / "notes.txt").touch()
    with mode(tmp_path, 0o444):
        assert ModelRepository(tmp_path).names() == ("double",)
    with (
        mode(tmp_path, 0o111),
        pytest.raises(ConfigError, match=r"cannot be read: .*: Permission denied"),
    ):
        ModelRepository(tmp_path).names()


def test_it_polls_until_it_is_cancelled(
    loop: Loop, tmp_path: Path, registry: Any, watcher: Any
) -> None:
    """As the server runs it: what it brings in before a look is found by that look, and a poll
    that fails is not the last."""
    staged = write_version(tmp_path / "double" / ".staging")
    failures = [ConfigError("the source is away")]

    def refresh() -> None:
        if failures:
            raise failures.pop()
        if staged.exists():
            staged.rename(tmp_path / "double" / "2")

    run = partial(watcher.it.run, every=0.005, refresh=refresh)
    running = loop.start(lambda: loop.loop.create_task(run())).result(PATIENCE)
    wait_until(lambda: served(registry) == [("double", 2)])
    loop(running.cancel)
    wait_until(running.cancelled)
