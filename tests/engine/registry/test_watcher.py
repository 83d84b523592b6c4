"""Poll mode: what changes on disk is loaded once, and what fails leaves the old version serving."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from paddlepool.contracts.errors import ConfigError
from paddlepool.contracts.ports import ServedModelInfo
from paddlepool.engine.registry.registry import ModelRegistry
from paddlepool.engine.registry.watcher import RepositoryWatcher
from paddlepool.models.repository.layout import ModelRepository
from tests.engine.fakes import FakeFactory, eventually, open_registry, write_double
from tests.engine.permissions import mode
from tests.model_files import add_to_config, write_model, write_version


class Bench:
    """A registry, and a watcher that starts with what its repository holds now."""

    def __init__(self, root: Path, registry: ModelRegistry, factory: FakeFactory) -> None:
        self.root, self.registry, self.factory = root, registry, factory
        self.watcher = RepositoryWatcher(ModelRepository(root), registry)

    def served(self) -> list[tuple[str, int]]:
        return [(model.name, model.version) for model in self.registry.served()]

    async def poll_twice(self) -> None:
        """A change counts once two polls have seen it."""
        await self.watcher.poll()
        await self.watcher.poll()


@pytest.fixture
def bench(tmp_path: Path, registry: ModelRegistry, factory: FakeFactory) -> Bench:
    """Serves `double`."""
    return Bench(tmp_path, registry, factory)


@pytest.fixture
async def empty(tmp_path: Path, factory: FakeFactory) -> AsyncIterator[ModelRegistry]:
    """A registry that has loaded nothing."""
    registry = open_registry(tmp_path, factory)
    yield registry
    await registry.close()


ALL = '[version_policy]\nkind = "all"\n'


async def test_a_new_version_is_served_and_the_old_one_retired(bench: Bench) -> None:
    write_version(bench.root / "double" / "2")
    await bench.poll_twice()
    assert bench.served() == [("double", 2)]
    assert bench.factory.opened[0].closed.is_set()
    await bench.poll_twice()
    assert len(bench.factory.opened) == 2
    shutil.rmtree(bench.root / "double" / "2")
    await bench.poll_twice()
    assert bench.served() == [("double", 1)]


async def test_a_configuration_that_is_being_written_counts_for_nothing(bench: Bench) -> None:
    """A poll may come between its truncation and its text; an empty file means the defaults."""
    write_version(bench.root / "double" / "2")
    add_to_config(bench.root / "double", ALL)
    await bench.poll_twice()
    config = bench.root / "double" / "config.toml"
    text = config.read_text("utf-8")
    for change in ("# one\n", "# two\n"):
        config.write_text("", "utf-8")
        await bench.watcher.poll()
        config.write_text(text + change, "utf-8")
        await bench.watcher.poll()
    assert bench.served() == [("double", 2), ("double", 1)]
    opened = len(bench.factory.opened)
    await bench.poll_twice()
    assert len(bench.factory.opened) == opened + 2


async def test_a_version_that_fails_is_tried_again_only_when_it_changes(bench: Bench) -> None:
    bad = write_version(bench.root / "double" / "2")
    params = (bad / "inference.pdiparams").read_bytes()
    (bad / "inference.pdiparams").write_bytes(params[:-1])
    await bench.poll_twice()
    assert bench.served() == [("double", 1)]
    assert "inference.pdiparams" in bench.registry.index()[0].reason
    (bad / "inference.pdiparams").write_bytes(params)
    await bench.poll_twice()  # the manifest, which is written last, has not changed
    assert bench.served() == [("double", 1)]
    (bad / "manifest.json").write_text((bad / "manifest.json").read_text("utf-8") + "\n", "utf-8")
    await bench.poll_twice()
    assert bench.served() == [("double", 2)]


async def test_a_new_model_appears_and_a_removed_one_goes(bench: Bench) -> None:
    """A model that is new and unfit does not make the server unready: nobody could use it yet."""
    write_double(bench.root, name="more")
    write_model(bench.root / "unfit", "nonsense = 1")
    await bench.poll_twice()
    assert bench.served() == [("double", 1), ("more", 1)]
    assert bench.registry.ready()
    assert bench.registry.expected() == ("double", "more", "unfit")
    assert "unfit" in {status.name for status in bench.registry.index()}
    shutil.rmtree(bench.root / "double")
    shutil.rmtree(bench.root / "unfit")
    await bench.poll_twice()
    assert bench.served() == [("more", 1)]
    assert {status.name for status in bench.registry.index()} == {"more"}
    assert bench.registry.expected() == ("more",)
    assert bench.registry.ready()


async def test_a_changed_policy_opens_only_what_is_missing(bench: Bench) -> None:
    write_version(bench.root / "double" / "2")
    add_to_config(bench.root / "double", ALL)
    await bench.poll_twice()
    assert bench.served() == [("double", 2), ("double", 1)]
    before = len(bench.factory.opened)
    write_version(bench.root / "double" / "3")
    await bench.poll_twice()
    assert bench.served() == [("double", 3), ("double", 2), ("double", 1)]
    assert len(bench.factory.opened) == before + 1


async def test_a_repository_that_cannot_be_read_retires_nothing(bench: Bench) -> None:
    """A disk that is away for a moment must not unload everything."""
    away = bench.root.with_name(bench.root.name + "-away")
    bench.root.rename(away)
    with pytest.raises(ConfigError):
        await bench.poll_twice()
    assert bench.served() == [("double", 1)]
    away.rename(bench.root)
    await bench.poll_twice()
    assert bench.served() == [("double", 1)]


@pytest.mark.parametrize(
    "where",
    [lambda root: root / "double", lambda root: root / "double" / "1"],
    ids=["model", "version"],
)
async def test_a_model_that_cannot_be_read_for_a_moment_is_kept(
    bench: Bench, where: Callable[[Path], Path]
) -> None:
    """The others are looked at all the same, and it is not loaded again when it can be read."""
    write_double(bench.root, name="more")
    with mode(where(bench.root), 0):
        await bench.poll_twice()
        assert bench.served() == [("double", 1), ("more", 1)]
        assert ("more", 1) in [(status.name, status.version) for status in bench.registry.index()]
    await bench.poll_twice()
    assert bench.served() == [("double", 1), ("more", 1)]
    assert len(bench.factory.opened) == 2


async def test_a_load_that_cannot_read_is_tried_again(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "more"):
        write_double(bench.root, name=name)
    with mode(bench.root / "a" / "config.toml", 0):
        await bench.poll_twice()
        assert bench.served() == [("double", 1), ("more", 1)]
    [warning] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warning.startswith("a stays unchanged for now: ")
    assert "config.toml" in warning
    await bench.poll_twice()
    assert bench.served() == [("a", 1), ("double", 1), ("more", 1)]


@pytest.mark.parametrize(
    "where",
    [
        "double/config.toml",
        "double/1/manifest.json",
        "double/1/selftest.npz",
        "double/1",
        "double",
        ".",
    ],
)
async def test_a_start_that_cannot_read_is_tried_again(
    tmp_path: Path, empty: ModelRegistry, factory: FakeFactory, where: str
) -> None:
    for name in ("double", "more"):
        write_double(tmp_path, name=name)
    with mode(tmp_path / where, 0):
        bench = Bench(tmp_path, empty, factory)
        if where == ".":
            with pytest.raises(ConfigError):
                await bench.watcher.load_all()
        else:
            await bench.watcher.load_all()
        assert ("double", 1) not in bench.served()
    await bench.poll_twice()
    assert bench.served() == [("double", 1), ("more", 1)]
    assert len(factory.opened) == 2


async def test_a_version_that_cannot_be_read_at_the_start_is_loaded_later(
    tmp_path: Path, empty: ModelRegistry, factory: FakeFactory
) -> None:
    write_double(tmp_path, 1, 2, 3)
    add_to_config(tmp_path / "double", ALL)
    with mode(tmp_path / "double" / "2" / "manifest.json", 0):
        bench = Bench(tmp_path, empty, factory)
        await bench.watcher.load_all()
        await bench.poll_twice()
        assert bench.served() == [("double", 3), ("double", 1)]
    await bench.poll_twice()
    assert bench.served() == [("double", 3), ("double", 2), ("double", 1)]
    assert len(factory.opened) == 3


async def test_an_empty_model_is_forgotten_when_it_is_removed(
    tmp_path: Path, empty: ModelRegistry, factory: FakeFactory
) -> None:
    """Without a file, all that changes is that its directory is gone."""
    write_double(tmp_path)
    (tmp_path / "new").mkdir()
    bench = Bench(tmp_path, empty, factory)
    await bench.watcher.load_all()
    assert not empty.ready()
    (tmp_path / "new").rmdir()
    await bench.poll_twice()
    assert empty.ready()
    assert {status.name for status in empty.index()} == {"double"}


async def test_a_model_that_could_not_be_read_is_forgotten_when_it_is_removed(
    tmp_path: Path, empty: ModelRegistry, factory: FakeFactory
) -> None:
    """Also before the poll that would have loaded it."""
    for name in ("double", "more"):
        write_double(tmp_path, name=name)
    with mode(tmp_path / "more" / "config.toml", 0):
        bench = Bench(tmp_path, empty, factory)
        await bench.watcher.load_all()
    assert not empty.ready()
    shutil.rmtree(tmp_path / "more")
    await bench.poll_twice()
    assert empty.ready()
    assert {status.name for status in empty.index()} == {"double"}


async def test_a_bug_costs_one_model(
    tmp_path: Path, factory: FakeFactory, caplog: pytest.LogCaptureFixture
) -> None:
    async def build(info: ServedModelInfo) -> None:
        if info.name == "a":
            raise RuntimeError("a bug")

    registry = open_registry(tmp_path, factory, build_pipeline=build)
    bench = Bench(tmp_path, registry, factory)
    for name in ("a", "more"):
        write_double(tmp_path, name=name)
    await bench.poll_twice()
    assert bench.served() == [("more", 1)]
    assert "RuntimeError: a bug" in caplog.text
    await registry.close()


def test_the_names_are_those_that_the_repository_lists(tmp_path: Path) -> None:
    """A repository that cannot be listed is a ConfigError."""
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


async def test_a_change_that_waits_is_polled_for_soon(bench: Bench) -> None:
    """However long the usual interval is: run() polls sooner if poll() says so."""
    write_version(bench.root / "double" / "2")
    assert await bench.watcher.poll()
    assert not await bench.watcher.poll()
    assert bench.served() == [("double", 2)]


async def test_it_polls_until_it_is_cancelled(bench: Bench) -> None:
    """A look finds what `refresh` brings in before it; a failed poll is not the last."""
    staged = write_version(bench.root / "double" / ".staging")
    failures = [ConfigError("the source is away")]

    def refresh() -> None:
        if failures:
            raise failures.pop()
        if staged.exists():
            staged.rename(bench.root / "double" / "2")

    running = asyncio.create_task(bench.watcher.run(every=0.005, refresh=refresh))
    await eventually(lambda: bench.served() == [("double", 2)])
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
