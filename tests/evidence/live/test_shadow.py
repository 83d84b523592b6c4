"""A share of the answered requests runs again on other groups; the rest costs nothing."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from paddlepool.contracts.errors import BackendError, WorkerCrashed
from paddlepool.contracts.tensors import Tensors
from paddlepool.engine.registry.model import ServedModel
from paddlepool.engine.registry.registry import ModelRegistry
from paddlepool.evidence.live.background import Shadow, warn_of_unknown_groups
from paddlepool.models.repository.config import InstanceGroup, ModelConfig
from tests.engine.fakes import FakeFactory, doubled, failing, open_registry, row, write_double
from tests.evidence.live.fakes import Live, nudged, shadow_of
from tests.model_files import ON_DEMAND, add_to_config, group

Build = Callable[..., Shadow]


@pytest.fixture
async def build(live: Live) -> AsyncIterator[Build]:
    built: list[Shadow] = []

    def build(registry: ModelRegistry | None = None, **changes: Any) -> Shadow:
        built.append(shadow_of(live, registry, **changes))
        return built[-1]

    yield build
    for shadow in built:
        shadow.close()


def offer(shadow: Shadow, served: ServedModel, *, group: str = "main") -> bool:
    return shadow.offer(served, group, row(1, 2), doubled(row(1, 2)))


def replay(shadow: Shadow, served: ServedModel) -> None:
    offer(shadow, served)
    shadow.replay_one()


async def test_a_replay_records_time_and_drift(live: Live, build: Build) -> None:
    live.beside.behaviour = nudged
    shadow = build(agreement_of=lambda info: lambda outputs, expected: 0.75)
    assert offer(shadow, live.served)
    assert shadow.replay_one()
    [batch] = live.observer.batches
    assert batch.pop("seconds") >= 0
    assert batch == {"model": "double", "version": 1, "group": "spare", "rows": 1}
    assert live.observer.drifts == [
        {"model": "double", "group": "spare", "drift": 0.25, "agreement": 0.75}
    ]
    assert live.observer.outcomes == ["replayed"]
    assert not shadow.replay_one()


@pytest.mark.parametrize(
    ("draw", "group", "accepted"),
    [(0.09, "main", True), (0.1, "main", False), (0.9, "main", False), (0.0, "spare", False)],
)
async def test_a_share_of_the_default_groups_requests_is_drawn(
    live: Live, build: Build, draw: float, group: str, accepted: bool
) -> None:
    """Drift is from the default group: a request that pins another one is not replayed."""
    shadow = build(fraction=0.1, draw=lambda: draw)
    assert offer(shadow, live.served, group=group) is accepted


async def test_one_sample_waits_and_the_rest_is_dropped(live: Live, build: Build) -> None:
    """Nothing is queued, so a busy server holds one request's tensors and no more."""
    shadow = build()
    assert offer(shadow, live.served)
    assert not offer(shadow, live.served)
    assert live.observer.outcomes == ["dropped"]
    assert shadow.waiting()


@pytest.mark.parametrize(
    ("where", "error", "times", "outcomes"),
    [
        ("selftest", BackendError("no GPU"), 1, ["failed", "dropped"]),
        ("selftest", WorkerCrashed("killed"), 1, ["failed", "replayed", "replayed"]),
        ("selftest", WorkerCrashed("killed"), 2, ["failed", "failed", "dropped"]),
        ("behaviour", WorkerCrashed("killed"), 1, ["failed", "replayed"]),
    ],
    ids=["refused", "died once as it opened", "died twice", "died in a run"],
)
async def test_a_group_that_fails_is_tried_again_unless_it_is_refused(
    live: Live, build: Build, where: str, error: Exception, times: int, outcomes: list[str]
) -> None:
    """The system may have ended a process for want of memory; one that dies again as it is opened
    is its group's doing."""
    setattr(live.beside, where, failing(lambda: error, times=times))
    shadow = build()
    for _ in outcomes:
        replay(shadow, live.served)
    assert live.observer.outcomes == outcomes
    assert live.beside.opened[0].closed.is_set()


async def test_no_more_predictors_exist_than_may(live: Live, tmp_path: Path, build: Build) -> None:
    model = write_double(tmp_path / "three")
    add_to_config(model, group("third", ON_DEMAND))
    registry = open_registry(tmp_path / "three", FakeFactory())
    alive = []

    def counting(inputs: Tensors) -> Tensors:
        alive.append(sum(not spare.closed.is_set() for spare in live.beside.opened))
        return doubled(inputs)

    live.beside.selftest = counting
    shadow = build(registry, groups=("spare", "third"), max_predictors=1)
    await registry.load_all()
    [served] = registry.served()
    for _ in range(2):
        replay(shadow, served)
    await registry.close()
    assert alive == [1, 1, 1, 1]


async def test_a_predictor_that_grows_is_replaced(live: Live, build: Build) -> None:
    """Memory is bounded also for what nobody waits for."""
    shadow = build()
    replay(shadow, live.served)
    live.beside.opened[0].resident = 3 << 30
    replay(shadow, live.served)
    assert live.beside.opened[0].closed.is_set()


async def test_what_is_no_longer_served_is_forgotten(live: Live, build: Build) -> None:
    shadow = build()
    replay(shadow, live.served)
    offer(shadow, live.served)
    await live.registry.unload("double")
    shadow.replay_one()
    assert live.observer.outcomes == ["replayed", "dropped"]
    assert live.beside.opened[0].closed.is_set()


@pytest.mark.parametrize(
    ("name", "warns"),
    [("natve", True), ("main", True), ("spare", False)],
    ids=["no group", "a default group", "there"],
)
def test_a_group_that_no_model_has_is_warned_of(
    caplog: pytest.LogCaptureFixture, name: str, warns: bool
) -> None:
    """It may come later by polling; a typing error would be noticed by nobody otherwise."""
    groups = tuple(InstanceGroup(name=group, backend="fake") for group in ("main", "spare"))
    warn_of_unknown_groups([name], [ModelConfig(default_group="main", instance_group=groups)])
    line = f"SHADOW_GROUPS: no model has an instance group {name!r}"
    assert caplog.text.count(line) == warns
