"""Several versions at once: which are served, which answers, and what a failure leaves."""

import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from paddlepool.contracts.errors import ModelNotFound, ModelNotReady, PaddlepoolError
from paddlepool.engine.registry.watcher import RepositoryWatcher
from paddlepool.models.repository.layout import ModelRepository
from tests.engine.fakes import FakeFactory, infer, open_registry, write_double
from tests.engine.permissions import mode
from tests.model_files import write_version


class Bench:
    """A registry whose model `double` has a version policy."""

    def __init__(self, root: Path, way: str) -> None:
        self.model, self.factory = root / "double", FakeFactory()
        self.registry = open_registry(root, self.factory)
        self._polls = way == "poll"
        self._watcher: RepositoryWatcher | None = None

    def prepare(self, policy: str, *versions: int) -> None:
        write_double(self.model.parent, *versions)
        self.choose(policy)

    def choose(self, policy: str) -> None:
        """Write the policy into config.toml, in place of the one before."""
        config = self.model / "config.toml"
        text = config.read_text("utf-8").partition("[version_policy]")[0]
        config.write_text(f"{text}[version_policy]\n{policy}\n", "utf-8")

    async def load(self) -> str | None:
        """By a request, or by polls of the repository after the first time, which is the start.

        Returns the error of a rejected request, "" of an accepted one, and None of polls.
        """
        if self._watcher is not None:
            await self._watcher.poll()
            await self._watcher.poll()  # a change counts once two polls have seen it
            return None
        try:
            await self.registry.load("double")
        except PaddlepoolError as error:
            return error.message
        if self._polls:
            self._watcher = RepositoryWatcher(ModelRepository(self.model.parent), self.registry)
        return ""

    def index(self) -> dict[int | None, tuple[str, str]]:
        return {status.version: (status.state, status.reason) for status in self.registry.index()}

    def served(self) -> list[int]:
        return [model.version for model in self.registry.served()]


@pytest.fixture
async def bench(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path, getattr(request, "param", "request"))
    yield bench
    await bench.registry.close()


either_way = pytest.mark.parametrize("bench", ["request", "poll"], indirect=True)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("", [10]),
        ('kind = "latest"\ncount = 2', [10, 3]),
        ("count = 9", [10, 3, 1]),
        ('kind = "all"', [10, 3, 1]),
        ('kind = "specific"\nversions = [1, 3]', [3, 1]),
    ],
    ids=["default", "latest-2", "latest-9", "all", "specific"],
)
async def test_a_policy_chooses_versions(bench: Bench, policy: str, expected: list[int]) -> None:
    bench.prepare(policy, 1, 3, 10)
    await bench.registry.load("double")
    assert bench.served() == expected
    assert (await infer(bench.registry)).version == expected[0]
    for version in expected:
        assert (await infer(bench.registry, version=version)).version == version
    for version in {1, 3, 10} - set(expected):
        with pytest.raises(ModelNotFound), bench.registry.lease("double", version):
            pass


async def test_an_older_version_stands_in_beside_a_damaged_one(bench: Bench) -> None:
    bench.prepare("count = 2", 1, 2, 3)
    (bench.model / "3" / "inference.json").write_bytes(b"")
    await bench.registry.load("double")
    assert bench.served() == [2, 1]


async def test_a_listed_version_that_is_not_there_is_an_error(bench: Bench) -> None:
    bench.prepare('kind = "specific"\nversions = [1, 7]', 1, 2)
    await bench.registry.load("double")
    assert bench.served() == [1]
    assert any("no version 7" in status.reason for status in bench.registry.index())
    with pytest.raises(ModelNotReady), bench.registry.lease("double", 7):
        pass


async def test_a_version_that_lost_its_predictors_gives_way(bench: Bench) -> None:
    bench.prepare('kind = "all"', 1, 2)
    await bench.registry.load("double")
    with bench.registry.lease("double", 2) as newest:
        await newest.close()
    assert (await infer(bench.registry)).version == 1
    assert bench.registry.ready("double")


async def test_an_unsealed_version_is_shown_with_what_it_lacks(bench: Bench) -> None:
    """A directory without a manifest is no version; whoever put it there should hear why."""
    bench.prepare("", 1)
    await bench.registry.load("double")
    (write_version(bench.model / "2") / "manifest.json").unlink()
    newest = bench.registry.index()[0]
    assert (newest.version, newest.state) == (2, "UNAVAILABLE")
    assert "no manifest.json" in newest.reason
    assert "paddlepool models seal" in newest.reason


def _append(text: str) -> Callable[[Path], object]:
    return lambda config: config.write_text(config.read_text("utf-8") + text, "utf-8")


UNREADABLE: dict[str, Callable[[Path], object]] = {
    "an unknown key": lambda c: c.write_text("max_batch = 3\n" + c.read_text("utf-8"), "utf-8"),
    "not TOML": _append("max_batch ="),
    "not UTF-8": lambda c: c.write_bytes(c.read_bytes() + b"# \xff"),
    "nested too deep": _append(f"deep = {'[' * 5000}"),
    "a number too long": _append(f"long = {'9' * 5000}"),
    "a contradiction": _append("versions = [1]\nkind = 'latest'"),
    "a link to nothing": lambda c: (c.unlink(), c.symlink_to("elsewhere.toml")),
}


@either_way
@pytest.mark.parametrize("spoil", UNREADABLE.values(), ids=UNREADABLE)
@pytest.mark.parametrize("policy", ["count = 2", 'kind = "all"'], ids=["latest", "all"])
async def test_a_configuration_that_cannot_be_read_leaves_every_version_serving(
    bench: Bench, policy: str, spoil: Callable[[Path], object]
) -> None:
    """It says no longer which versions are wanted, so none may go; the index says why."""
    bench.prepare(policy, 1, 2)
    config = bench.model / "config.toml"
    await bench.load()
    text = config.read_text("utf-8")
    before = bench.served()
    spoil(config)
    refusal = await bench.load()
    assert refusal is None or refusal.startswith("double/config.toml")
    assert bench.served() == before == [2, 1]
    answering = [(await infer(bench.registry, version=version)).version for version in (1, 2, None)]
    assert answering == [1, 2, 2]
    assert len(bench.factory.opened) == 2
    assert bench.registry.ready()
    assert set(bench.index()) == {1, 2}
    for state, reason in bench.index().values():
        assert state == "READY"
        assert reason.startswith("serves on; loading it again failed: double/config.toml")
    config.unlink()
    config.write_text(text + "# repaired\n", "utf-8")
    assert not await bench.load()
    assert bench.index() == {2: ("READY", ""), 1: ("READY", "")}


@either_way
async def test_a_configuration_that_cannot_be_read_keeps_a_newcomer_out(bench: Bench) -> None:
    """With the reason; a number that is not there is still not found."""
    bench.prepare("count = 2", 1, 2)
    await bench.load()
    write_version(bench.model / "3")
    bench.choose("count = none")
    await bench.load()
    assert bench.served() == [2, 1]
    state, reason = bench.index()[3]
    assert state == "UNAVAILABLE"
    assert reason.startswith("double/config.toml: it is not TOML")
    with pytest.raises(ModelNotReady), bench.registry.lease("double", 3):
        pass
    with pytest.raises(ModelNotFound), bench.registry.lease("double", 4):
        pass
    bench.choose("count = 2")
    await bench.load()
    assert bench.served() == [3, 2]
    assert bench.index()[1] == ("UNAVAILABLE", "not loaded")


async def test_a_configuration_that_cannot_be_read_at_start_keeps_every_version_out(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """They are there, so they are not ready; the log says why, once."""
    bench.prepare("count = none", 1, 2)
    await bench.registry.load_all()
    assert set(bench.index()) == {1, 2}
    for _, reason in bench.index().values():
        assert reason.startswith("double/config.toml: it is not TOML:")
    for version in (1, 2, None):
        with pytest.raises(ModelNotReady), bench.registry.lease("double", version):
            pass
    with pytest.raises(ModelNotFound), bench.registry.lease("double", 3):
        pass
    [error] = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert error.startswith("double: no version is loaded: double/config.toml: it is not TOML")


@either_way
async def test_the_log_says_that_a_model_serves_on_if_its_configuration_cannot_be_read(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.prepare('kind = "all"', 1, 2)
    await bench.load()
    bench.choose("count = none")
    await bench.load()
    [error] = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    reason = "double/config.toml: it is not TOML"
    assert error.startswith(f"double: serves on; loading it again failed: {reason}")


@either_way
async def test_the_log_says_whether_a_version_that_fails_serves_on(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.prepare('kind = "all"', 1)
    await bench.load()
    (bench.model / "1" / "manifest.json").write_text("{", "utf-8")
    await bench.load()
    (write_version(bench.model / "2") / "manifest.json").write_text("{", "utf-8")
    await bench.load()
    assert bench.served() == [1]
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert [error.partition(": double/")[0] for error in errors] == [
        "double: version 1 serves on; loading it again failed",
        "double: version 2 is not served",
    ]


async def test_a_configuration_that_the_system_keeps_from_us_leaves_every_version_serving(
    bench: Bench,
) -> None:
    bench.prepare('kind = "all"', 1, 2)
    await bench.registry.load("double")
    with mode(bench.model / "config.toml", 0), pytest.raises(PermissionError):
        await bench.registry.load("double")
    assert bench.served() == [2, 1]
    reason = "serves on; loading it again failed: Permission denied: see the log"
    assert bench.index() == {2: ("READY", reason), 1: ("READY", reason)}


@either_way
async def test_a_failed_version_that_is_removed_is_forgotten(bench: Bench) -> None:
    bench.prepare('kind = "all"', 1, 2)
    await bench.load()
    (write_version(bench.model / "4") / "inference.json").write_bytes(b"")
    await bench.load()
    assert bench.index()[4][0] == "UNAVAILABLE"
    with pytest.raises(ModelNotReady), bench.registry.lease("double", 4):
        pass
    shutil.rmtree(bench.model / "4")
    await bench.load()
    assert bench.index() == {2: ("READY", ""), 1: ("READY", "")}
    with pytest.raises(ModelNotFound), bench.registry.lease("double", 4):
        pass
