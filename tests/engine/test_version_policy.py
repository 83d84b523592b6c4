"""Several versions at once: which are served, which answers, and what a failure leaves."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.engine.registry import ModelRegistry
from app.errors import ManifestError, ModelNotFound, ModelNotReady, PaddlepoolError
from tests.engine.fakes import PATIENCE, FakeFactory, open_registry, row, write_double
from tests.model_files import write_version


@pytest.fixture
def factory() -> FakeFactory:
    return FakeFactory()


@pytest.fixture
def registry(tmp_path: Path, factory: FakeFactory) -> Iterator[ModelRegistry]:
    registry = open_registry(tmp_path, factory)
    yield registry
    registry.close()


def prepare(tmp_path: Path, policy: str, *versions: int) -> Path:
    model = write_double(tmp_path, *versions)
    config = model / "config.toml"
    config.write_text(config.read_text("utf-8") + f"[version_policy]\n{policy}\n", "utf-8")
    return model


def served(registry: ModelRegistry) -> list[int]:
    return [model.version for model in registry.served()]


def answers(registry: ModelRegistry, version: int | None = None) -> int:
    with registry.lease("double", version) as model:
        future = model.submit(row(1), deadline=time.monotonic() + PATIENCE)
        return future.result(timeout=PATIENCE).version


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
    tmp_path: Path, registry: ModelRegistry, policy: str, expected: list[int]
) -> None:
    """Each of them answers by its number, and the highest where none is named."""
    prepare(tmp_path, policy, 1, 3, 10)
    registry.load("double")
    assert served(registry) == expected
    assert answers(registry) == expected[0]
    for version in expected:
        assert answers(registry, version) == version
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
    tmp_path: Path, registry: ModelRegistry, policy: str
) -> None:
    """The index names config.toml."""
    prepare(tmp_path, policy, 1)
    with pytest.raises(PaddlepoolError, match=r"double/config\.toml: version_policy"):
        registry.load("double")
    assert "config.toml" in registry.index()[0].reason


def test_an_older_version_stands_in_beside_a_damaged_one(
    tmp_path: Path, registry: ModelRegistry
) -> None:
    """The two latest that are fit, while version 3 is not."""
    model = prepare(tmp_path, "count = 2", 1, 2, 3)
    (model / "3" / "inference.json").write_bytes(b"")
    registry.load("double")
    assert served(registry) == [2, 1]


def test_a_damaged_newcomer_leaves_every_version_serving(
    tmp_path: Path, registry: ModelRegistry, factory: FakeFactory
) -> None:
    """None is opened again for it."""
    model = prepare(tmp_path, "count = 2", 1, 2)
    registry.load("double")
    (write_version(model / "3") / "inference.json").write_bytes(b"")
    with pytest.raises(ManifestError):
        registry.load("double", changed={3})
    assert served(registry) == [2, 1]
    assert len(factory.opened) == 2


def test_a_listed_version_that_is_not_there_is_an_error(
    tmp_path: Path, registry: ModelRegistry
) -> None:
    """The others serve: at start nothing else could."""
    prepare(tmp_path, 'kind = "specific"\nversions = [1, 7]', 1, 2)
    registry.load("double")
    assert served(registry) == [1]
    assert any("no version 7" in status.reason for status in registry.index())
    with pytest.raises(ModelNotReady), registry.lease("double", 7):
        pass


def test_a_version_that_lost_its_predictors_gives_way(
    tmp_path: Path, registry: ModelRegistry, factory: FakeFactory
) -> None:
    """Without a version the highest READY one answers."""
    prepare(tmp_path, 'kind = "all"', 1, 2)
    registry.load("double")
    with registry.lease("double", 2) as newest:
        newest.close()
    assert answers(registry) == 1
    assert registry.ready("double")


def test_unload_ends_every_version(tmp_path: Path, registry: ModelRegistry) -> None:
    """And the index shows them as not loaded."""
    prepare(tmp_path, 'kind = "all"', 1, 2)
    registry.load("double")
    registry.unload("double")
    assert served(registry) == []
    assert {status.reason for status in registry.index()} == {"not loaded"}


def test_an_unsealed_version_is_shown_with_what_it_lacks(
    tmp_path: Path, registry: ModelRegistry
) -> None:
    """A directory without a manifest is no version; whoever put it there should hear why."""
    model = prepare(tmp_path, "", 1)
    registry.load("double")
    (write_version(model / "2") / "manifest.json").unlink()
    newest = registry.index()[0]
    assert (newest.version, newest.state) == (2, "UNAVAILABLE")
    assert "no manifest.json" in newest.reason
    assert "paddlepool models seal" in newest.reason
