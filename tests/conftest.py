"""Fixtures that several parts of the tests share."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from tests.ran import ROOT, ran

if TYPE_CHECKING:
    from paddlepool.engine.registry.registry import ModelRegistry
    from paddlepool.models.repository.layout import ModelFiles
    from tests.engine.fakes import FakeFactory, RecordingObserver

PILLOW_PIXELS = 1024**3 // 4 // 3
"""Pillow's own default."""

# An example that a busy machine holds up is no failure: only wrong answers are.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")
hypothesis.settings.register_profile(  # for `make test-fast`
    "fast", hypothesis.settings.get_profile("any machine"), max_examples=20
)


def pytest_collection_finish() -> None:
    """What is imported stays: collections of garbage need not go through it after each test."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _children_import_tests() -> Iterator[None]:
    """Child processes may not read the checkout beyond the package. They get the package `tests`
    from a directory of its own, and may read its files because libraries are sought there, too."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", str(ROOT / "tests" / "for_children"), prepend=os.pathsep)
        patched.setenv("LD_LIBRARY_PATH", str(ROOT / "tests"))
        yield


@pytest.fixture(scope="session")
def tiny_model_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model repository with one real, tiny Paddle model `tiny`; read-only: copy it to change it.

    Input `image` float32 [-1,3,-1,-1]; outputs `scores` [-1,2] and `mean` [-1,4]; groups `onednn`
    (always) and `native` (on demand); batches of up to 4 rows. `other.pdiparams` in the
    repository's root are weights that fit the program and give other results.
    """
    repository = tmp_path_factory.mktemp("tiny_model_repository")
    ran([sys.executable, "-m", "tests.tiny_model", str(repository)])
    return repository


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """What runs tests that are coroutines."""
    return "asyncio"


@pytest.fixture
def factory() -> FakeFactory:
    """Opens fake predictors and remembers them."""
    from tests.engine.fakes import FakeFactory  # what many tests need not load

    return FakeFactory()


@pytest.fixture
def observer() -> RecordingObserver:
    from tests.engine.fakes import RecordingObserver

    return RecordingObserver()


@pytest.fixture
def double(tmp_path: Path) -> ModelFiles:
    """Version 1 of `double` (y = 2 x), whose repository is `tmp_path`."""
    from paddlepool.models.repository.layout import ModelRepository
    from tests.engine.fakes import write_double

    write_double(tmp_path)
    return ModelRepository(tmp_path).read("double", 1)


@pytest.fixture
async def registry(
    tmp_path: Path, factory: FakeFactory, double: ModelFiles
) -> AsyncIterator[ModelRegistry]:
    """Serves `double` on fake predictors."""
    from tests.engine.fakes import open_registry

    registry = open_registry(tmp_path, factory)
    await registry.load_all()
    yield registry
    await registry.close()


@pytest.fixture(autouse=True)
def _pillow_forgets() -> Iterator[None]:
    """A codec sets Pillow's limit of pixels for its own process; tests share theirs."""
    yield
    if (image := sys.modules.get("PIL.Image")) is not None:
        image.MAX_IMAGE_PIXELS = PILLOW_PIXELS  # type: ignore[attr-defined]


@pytest.fixture
def hangups_count() -> Iterator[None]:
    """Under nohup this process ignores them, and so would its children."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)
