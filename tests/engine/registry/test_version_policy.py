"""Several versions at once: which are served, which answers, and what a failure leaves."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from app.contracts.errors import ModelNotFound, ModelNotReady, PaddlepoolError
from tests.engine.driving import Loop
from tests.engine.fakes import FakeFactory, answer, open_registry, open_watcher, write_double
from tests.engine.permissions import mode
from tests.model_files import write_version

Load = Callable[[], str | None]


@pytest.fixture
def registry(loop: Loop, tmp_path: Path, factory: FakeFactory) -> Iterator[Any]:
    registry = open_registry(loop, tmp_path, factory)
    yield registry
    registry.close()


@pytest.fixture
def load(loop: Loop, tmp_path: Path, registry: Any, request: pytest.FixtureRequest) -> Load:
    """Loads `double` as its parameter says: asked to, or by a look through the repository.

    Returns what a request is answered with where it is refused; None from a look.
    """
    watchers: list[Any] = []

    def by_request() -> str | None:
        try:
            registry.load("double")
        except PaddlepoolError as error:
            return error.message
        return ""

    def by_polling() -> None:
        if watchers:
            watchers[0].poll()
            watchers[0].poll()  # a change counts once two polls have seen it
        else:
            registry.load("double")  # as at start
            watchers.append(open_watcher(loop, tmp_path, registry))

    return by_request if request.param == "request" else by_polling


either_way = pytest.mark.parametrize("load", ["request", "poll"], indirect=True)


def prepare(tmp_path: Path, policy: str, *versions: int) -> Path:
    model = write_double(tmp_path, *versions)
    choose(model, policy)
    return model


def choose(model: Path, policy: str) -> None:
    """Write the policy into config.toml, in place of the one before."""
    config = model / "config.toml"
    text = config.read_text("utf-8").partition("[version_policy]")[0]
    config.write_text(f"{text}[version_policy]\n{policy}\n", "utf-8")


def index(registry: Any) -> dict[int | None, tuple[str, str]]:
    return {status.version: (status.state, status.reason) for status in registry.index()}


def served(registry: Any) -> list[int]:
    return [model.version for model in registry.served()]


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
def test_a_policy_chooses_versions(
    tmp_path: Path, registry: Any, policy: str, expected: list[int]
) -> None:
    """Each of them answers by its number, and the highest where none is named."""
    prepare(tmp_path, policy, 1, 3, 10)
    registry.load("double")
    assert served(registry) == expected
    assert answer(registry).version == expected[0]
    for version in expected:
        assert answer(registry, version=version).version == version
    for version in {1, 3, 10} - set(expected):
        with pytest.raises(ModelNotFound), registry.lease("double", version):
            pass


@pytest.mark.parametrize(
    "policy",
    [
        'kind = "newest"',
        "count = 0",
        'kind = "specific"',
        "versions = [1]",
        'kind = "all"\ncount = 2',
        "extra = 1",
    ],
)
def test_a_policy_that_contradicts_itself_is_refused(
    tmp_path: Path, registry: Any, policy: str
) -> None:
    """The index names config.toml."""
    prepare(tmp_path, policy, 1)
    with pytest.raises(PaddlepoolError, match=r"double/config\.toml: version_policy"):
        registry.load("double")
    assert "config.toml" in registry.index()[0].reason


def test_an_older_version_stands_in_beside_a_damaged_one(tmp_path: Path, registry: Any) -> None:
    """The two latest that are fit, while version 3 is not."""
    model = prepare(tmp_path, "count = 2", 1, 2, 3)
    (model / "3" / "inference.json").write_bytes(b"")
    registry.load("double")
    assert served(registry) == [2, 1]


def test_a_listed_version_that_is_not_there_is_an_error(tmp_path: Path, registry: Any) -> None:
    """The others serve: at start nothing else could."""
    prepare(tmp_path, 'kind = "specific"\nversions = [1, 7]', 1, 2)
    registry.load("double")
    assert served(registry) == [1]
    assert any("no version 7" in status.reason for status in registry.index())
    with pytest.raises(ModelNotReady), registry.lease("double", 7):
        pass


def test_a_version_that_lost_its_predictors_gives_way(
    tmp_path: Path, registry: Any, factory: FakeFactory
) -> None:
    """Without a version the highest READY one answers."""
    prepare(tmp_path, 'kind = "all"', 1, 2)
    registry.load("double")
    with registry.lease("double", 2) as newest:
        newest.close()
    assert answer(registry).version == 1
    assert registry.ready("double")


def test_an_unsealed_version_is_shown_with_what_it_lacks(tmp_path: Path, registry: Any) -> None:
    """A directory without a manifest is no version; whoever put it there should hear why."""
    model = prepare(tmp_path, "", 1)
    registry.load("double")
    (write_version(model / "2") / "manifest.json").unlink()
    newest = registry.index()[0]
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
def test_a_configuration_that_cannot_be_read_leaves_every_version_serving(
    tmp_path: Path,
    registry: Any,
    factory: FakeFactory,
    load: Load,
    policy: str,
    spoil: Callable[[Path], object],
) -> None:
    """It says no longer which versions are wanted, so none may go; the index says why."""
    config = prepare(tmp_path, policy, 1, 2) / "config.toml"
    load()
    text = config.read_text("utf-8")
    before = [model.version for model in registry.served()]
    spoil(config)
    refusal = load()
    assert refusal is None or refusal.startswith("double/config.toml")
    assert served(registry) == before == [2, 1]
    assert [answer(registry, version=version).version for version in (1, 2, None)] == [1, 2, 2]
    assert len(factory.opened) == 2
    assert registry.ready()
    found = index(registry)
    assert set(found) == {1, 2}
    for state, reason in found.values():
        assert state == "READY"
        assert reason.startswith("serves on; loading it again failed: double/config.toml")
    config.unlink()
    config.write_text(text + "# repaired\n", "utf-8")
    assert not load()
    assert index(registry) == {2: ("READY", ""), 1: ("READY", "")}


@either_way
def test_a_configuration_that_cannot_be_read_keeps_a_newcomer_out(
    tmp_path: Path, registry: Any, load: Load
) -> None:
    """With the reason; a number that is not there is still not found."""
    model = prepare(tmp_path, "count = 2", 1, 2)
    load()
    write_version(model / "3")
    choose(model, "count = none")
    load()
    assert served(registry) == [2, 1]
    state, reason = index(registry)[3]
    assert state == "UNAVAILABLE"
    assert reason.startswith("double/config.toml: it is not TOML")
    with pytest.raises(ModelNotReady), registry.lease("double", 3):
        pass
    with pytest.raises(ModelNotFound), registry.lease("double", 4):
        pass
    choose(model, "count = 2")
    load()
    assert served(registry) == [3, 2]
    assert index(registry)[1] == ("UNAVAILABLE", "not loaded")


def test_a_configuration_that_cannot_be_read_at_start_keeps_every_version_out(
    tmp_path: Path, registry: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """They are there, so they are not ready; the log says why, once."""
    prepare(tmp_path, "count = none", 1, 2)
    registry.load_all()
    assert set(index(registry)) == {1, 2}
    for _, reason in index(registry).values():
        assert reason.startswith("double/config.toml: it is not TOML:")
    for version in (1, 2, None):
        with pytest.raises(ModelNotReady), registry.lease("double", version):
            pass
    with pytest.raises(ModelNotFound), registry.lease("double", 3):
        pass
    [error] = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert error.startswith("double: no version is loaded: double/config.toml: it is not TOML")


def test_a_configuration_that_the_system_keeps_from_us_leaves_every_version_serving(
    loop: Loop, tmp_path: Path, registry: Any
) -> None:
    """The index says what the system said, without a path."""
    model = prepare(tmp_path, 'kind = "all"', 1, 2)
    registry.load("double")
    with loop(mode, model / "config.toml", 0), pytest.raises(PermissionError):
        registry.load("double")
    assert served(registry) == [2, 1]
    reason = "serves on; loading it again failed: Permission denied: see the log"
    assert index(registry) == {2: ("READY", reason), 1: ("READY", reason)}


@either_way
def test_a_failed_version_that_is_removed_is_forgotten(
    tmp_path: Path, registry: Any, factory: FakeFactory, load: Load
) -> None:
    """By the next load: it was UNAVAILABLE, and now there is no such version."""
    model = prepare(tmp_path, 'kind = "all"', 1, 2)
    load()
    (write_version(model / "4") / "inference.json").write_bytes(b"")
    load()
    assert index(registry)[4][0] == "UNAVAILABLE"
    with pytest.raises(ModelNotReady), registry.lease("double", 4):
        pass
    shutil.rmtree(model / "4")
    load()
    assert index(registry) == {2: ("READY", ""), 1: ("READY", "")}
    with pytest.raises(ModelNotFound), registry.lease("double", 4):
        pass
