"""Poll mode: what changes on disk is loaded once, and what fails leaves the old version serving."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.engine.registry import ModelRegistry
from app.engine.repository import ModelRepository
from app.engine.watcher import RepositoryWatcher
from app.errors import ConfigError
from tests.engine.fakes import PATIENCE, FakeFactory, open_registry, write_double
from tests.model_files import write_config, write_version


@pytest.fixture
def factory() -> FakeFactory:
    return FakeFactory()


@pytest.fixture
def registry(tmp_path: Path, factory: FakeFactory) -> Iterator[ModelRegistry]:
    write_double(tmp_path, 1)
    registry = open_registry(tmp_path, factory)
    registry.load_all()
    yield registry
    registry.close()


@pytest.fixture
def watcher(tmp_path: Path, registry: ModelRegistry) -> RepositoryWatcher:
    return RepositoryWatcher(ModelRepository(tmp_path), registry)


def served(registry: ModelRegistry) -> list[tuple[str, int]]:
    return [(model.name, model.version) for model in registry.served()]


def touch_config(tmp_path: Path, tail: str) -> None:
    config = tmp_path / "double" / "config.toml"
    config.write_text(config.read_text("utf-8") + tail, "utf-8")


def test_a_new_version_is_served_and_the_old_one_retired(
    tmp_path: Path, registry: ModelRegistry, watcher: RepositoryWatcher, factory: FakeFactory
) -> None:
    """Once: a second look changes nothing."""
    write_version(tmp_path / "double" / "2")
    watcher.poll()
    assert served(registry) == [("double", 2)]
    assert factory.opened[0].closed.is_set()
    watcher.poll()
    assert len(factory.opened) == 2


def test_a_version_that_fails_is_tried_again_only_when_it_changes(
    tmp_path: Path, registry: ModelRegistry, watcher: RepositoryWatcher
) -> None:
    """The old one serves on, and the index says why the new one does not."""
    bad = write_version(tmp_path / "double" / "2")
    params = (bad / "inference.pdiparams").read_bytes()
    (bad / "inference.pdiparams").write_bytes(params[:-1])
    watcher.poll()
    assert served(registry) == [("double", 1)]
    assert "inference.pdiparams" in registry.index()[0].reason
    (bad / "inference.pdiparams").write_bytes(params)
    watcher.poll()  # the manifest, which is written last, has not changed
    assert served(registry) == [("double", 1)]
    (bad / "manifest.json").write_text((bad / "manifest.json").read_text("utf-8") + "\n", "utf-8")
    watcher.poll()
    assert served(registry) == [("double", 2)]


def test_a_removed_version_makes_way_for_the_one_before(
    tmp_path: Path, registry: ModelRegistry, watcher: RepositoryWatcher
) -> None:
    """The newest that is left."""
    write_version(tmp_path / "double" / "2")
    watcher.poll()
    shutil.rmtree(tmp_path / "double" / "2")
    watcher.poll()
    assert served(registry) == [("double", 1)]


def test_a_new_model_appears_and_a_removed_one_goes(
    tmp_path: Path, registry: ModelRegistry, watcher: RepositoryWatcher
) -> None:
    """A model that is new and unfit does not make the server unready: nobody could use it yet."""
    write_config(tmp_path / "more", (tmp_path / "double" / "config.toml").read_text("utf-8"))
    write_version(tmp_path / "more" / "1")
    write_config(tmp_path / "unfit", "nonsense = 1")
    write_version(tmp_path / "unfit" / "1")
    watcher.poll()
    assert served(registry) == [("double", 1), ("more", 1)]
    assert registry.ready()
    shutil.rmtree(tmp_path / "double")
    watcher.poll()
    assert served(registry) == [("more", 1)]
    assert registry.ready()


def test_a_changed_policy_opens_only_what_is_missing(
    tmp_path: Path, registry: ModelRegistry, watcher: RepositoryWatcher, factory: FakeFactory
) -> None:
    """A version that is added later leaves its neighbours as they are."""
    write_version(tmp_path / "double" / "2")
    touch_config(tmp_path, '[version_policy]\nkind = "all"\n')
    watcher.poll()
    assert served(registry) == [("double", 2), ("double", 1)]
    before = len(factory.opened)
    write_version(tmp_path / "double" / "3")
    watcher.poll()
    assert served(registry) == [("double", 3), ("double", 2), ("double", 1)]
    assert len(factory.opened) == before + 1


def test_a_repository_that_cannot_be_read_retires_nothing(
    tmp_path: Path, registry: ModelRegistry, watcher: RepositoryWatcher
) -> None:
    """A disk that is away for a moment must not unload everything."""
    away = tmp_path.with_name(tmp_path.name + "-away")
    tmp_path.rename(away)
    with pytest.raises(ConfigError):
        watcher.poll()
    assert served(registry) == [("double", 1)]
    away.rename(tmp_path)
    watcher.poll()
    assert served(registry) == [("double", 1)]


def test_it_polls_until_it_is_told_to_stop(
    tmp_path: Path, registry: ModelRegistry, watcher: RepositoryWatcher
) -> None:
    """In a thread of its own, as the server runs it."""
    stop = threading.Event()
    thread = threading.Thread(target=lambda: watcher.run(every=0.005, until=stop))
    thread.start()
    write_version(tmp_path / "double" / ".staging").rename(tmp_path / "double" / "2")
    deadline = time.monotonic() + PATIENCE
    while served(registry) != [("double", 2)] and time.monotonic() < deadline:
        pass
    stop.set()
    thread.join(PATIENCE)
    assert served(registry) == [("double", 2)]
    assert not thread.is_alive()
