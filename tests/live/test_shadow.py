"""A share of the answered requests runs again on other groups; the rest costs nothing."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.contracts.errors import BackendError, WorkerCrashed
from app.contracts.tensors import Tensors, TensorSpec
from app.engine.registry.model import ServedModel
from app.engine.registry.registry import ModelRegistry
from app.live.idle_gate import IdleGate
from app.live.shadow import Shadow, warn_of_unknown_groups
from app.live.shadow_predictor import ShadowPredictors
from app.repository.config import InstanceGroup, ModelConfig
from tests.engine.fakes import PATIENCE, FakeFactory, doubled, open_registry, row, write_double
from tests.live.fakes import RecordingLive, dying, nudged
from tests.model_files import write_version

Build = Callable[..., Shadow]


@pytest.fixture
def observer() -> RecordingLive:
    return RecordingLive()


@pytest.fixture
def build(
    registry: ModelRegistry, shadow_predictors: ShadowPredictors, observer: RecordingLive
) -> Iterator[Build]:
    built: list[Shadow] = []

    def build(of: ModelRegistry = registry, **changes: Any) -> Shadow:
        options: dict[str, Any] = {
            "fraction": 1.0,
            "groups": ("spare",),
            "max_predictors": 4,
            "observer": observer,
            "agreement_of": lambda info: None,
            "draw": lambda: 0.0,
        }
        built.append(Shadow(of, shadow_predictors, **options | changes))
        return built[-1]

    yield build
    for shadow in built:
        shadow.close()


def offer(shadow: Shadow, served: ServedModel, *, group: str = "main") -> bool:
    return shadow.offer(served, group, [row(1, 2)], [doubled(row(1, 2))])


def test_a_replay_records_time_and_drift(
    build: Build, served: ServedModel, beside: FakeFactory, observer: RecordingLive
) -> None:
    """Under the labels of its own group, as a run of that group."""
    beside.behaviour = nudged
    shadow = build()
    assert offer(shadow, served)
    assert shadow.replay_one()
    [batch] = observer.batches
    assert batch.pop("seconds") >= 0
    assert batch == {"model": "double", "version": 1, "group": "spare", "rows": 1}
    assert observer.drifts == [
        {"model": "double", "group": "spare", "drift": 0.25, "agreement": None}
    ]
    assert observer.outcomes == ["replayed"]
    assert not shadow.replay_one()


@pytest.mark.parametrize("shape", [(7, 3), ()], ids=["a long first axis", "a scalar"])
def test_the_first_axis_of_an_unbatched_model_is_no_batch(
    tmp_path: Path, build: Build, observer: RecordingLive, shape: tuple[int, ...]
) -> None:
    """Its size is the client's choice, and would be as many values of the label batch_size."""
    x = np.ones(shape, np.float32)
    spec = TensorSpec("x", "float32", (-1,) * len(shape))
    model = write_double(tmp_path / "whole", batch=0)
    shutil.rmtree(model / "1")
    pairs = (spec,), (replace(spec, name="y"),)
    write_version(model / "1", specs=pairs, inputs={"x": x}, outputs={"y": 2 * x})
    registry = open_registry(tmp_path / "whole", FakeFactory())
    shadow = build(of=registry, max_predictors=1)
    try:
        registry.load_all()
        [served] = registry.served()
        shadow.offer(served, "main", [{"x": x}], [{"y": 2 * x}])
        assert shadow.replay_one()
    finally:
        shadow.close()
        registry.close()
    assert [batch["rows"] for batch in observer.batches] == [1]


def test_the_tasks_own_measure_is_recorded(
    build: Build, served: ServedModel, observer: RecordingLive
) -> None:
    """Such as the overlap of two masks."""
    shadow = build(agreement_of=lambda info: lambda found, expected: 0.75)
    offer(shadow, served)
    shadow.replay_one()
    assert observer.drifts[0]["agreement"] == 0.75


def test_an_interrupted_run_is_not_timed(
    build: Build,
    served: ServedModel,
    beside: FakeFactory,
    observer: RecordingLive,
    idle_gate: IdleGate,
) -> None:
    """Its time would be that of the request that interrupted it."""

    def interrupted(inputs):  # type: ignore[no-untyped-def]
        idle_gate.began()
        idle_gate.ended()
        return doubled(inputs)

    beside.behaviour = interrupted
    shadow = build()
    offer(shadow, served)
    shadow.replay_one()
    assert observer.batches == []
    assert observer.drifts[0]["drift"] == 0


@pytest.mark.parametrize(("draw", "taken"), [(0.09, True), (0.1, False), (0.9, False)])
def test_the_share_is_drawn(build: Build, served: ServedModel, draw: float, taken: bool) -> None:
    """A tenth means a tenth."""
    shadow = build(fraction=0.1, draw=lambda: draw)
    assert offer(shadow, served) is taken


def test_only_the_default_groups_answers_are_references(build: Build, served: ServedModel) -> None:
    """Drift is from the default group: a request that pins another one is not replayed."""
    assert not offer(build(), served, group="spare")


def test_one_sample_waits_and_the_rest_is_dropped(
    build: Build, served: ServedModel, observer: RecordingLive
) -> None:
    """Nothing is queued, so a busy server holds one request's tensors and no more."""
    shadow = build()
    assert offer(shadow, served)
    assert not offer(shadow, served)
    assert observer.outcomes == ["dropped"]
    assert shadow.waiting()


def test_one_job_of_a_request_is_replayed(
    build: Build, served: ServedModel, observer: RecordingLive
) -> None:
    """A request of 32 texts costs as much as one of one."""
    draws = iter([0.0, 0.7])
    shadow = build(draw=lambda: next(draws))
    jobs = [row(1), row(2), row(3)]
    shadow.offer(served, "main", jobs, [doubled(job) for job in jobs])
    shadow.replay_one()
    assert len(observer.drifts) == 1
    assert observer.drifts[0]["drift"] == 0


def test_without_names_the_started_groups_are_shadowed(
    build: Build, served: ServedModel, beside: FakeFactory, observer: RecordingLive
) -> None:
    """None is opened that nobody asked for."""
    shadow = build(groups=())
    offer(shadow, served)
    shadow.replay_one()
    assert observer.outcomes == ["dropped"]
    assert not beside.specs
    served.submit(row(1), deadline=time.monotonic() + PATIENCE, group="spare").result(PATIENCE)
    offer(shadow, served)
    shadow.replay_one()
    assert observer.outcomes == ["dropped", "replayed"]


def test_a_refused_group_is_not_tried_again(
    build: Build, served: ServedModel, beside: FakeFactory, observer: RecordingLive
) -> None:
    """Until its model is loaded again."""
    beside.refuse = BackendError("no GPU")
    shadow = build()
    for _ in range(2):
        offer(shadow, served)
        shadow.replay_one()
    assert observer.outcomes == ["failed", "dropped"]
    assert len(beside.specs) == 1


@pytest.mark.parametrize(
    ("deaths", "outcomes"),
    [(1, ["failed", "replayed", "replayed"]), (2, ["failed", "failed", "dropped"])],
    ids=["once", "twice"],
)
def test_a_process_that_dies_once_while_it_is_opened_is_no_refusal(
    build: Build,
    served: ServedModel,
    beside: FakeFactory,
    observer: RecordingLive,
    deaths: int,
    outcomes: list[str],
) -> None:
    """The system may have ended it for want of memory; one that dies again is its group's doing."""
    beside.selftest = dying(deaths)
    shadow = build()
    for _ in outcomes:
        offer(shadow, served)
        shadow.replay_one()
    assert observer.outcomes == outcomes


def test_a_crash_ends_one_replay(
    build: Build, served: ServedModel, beside: FakeFactory, observer: RecordingLive
) -> None:
    """The next one gets a new process."""

    def crash(inputs):  # type: ignore[no-untyped-def]
        raise WorkerCrashed("gone")

    beside.behaviour = crash
    shadow = build()
    offer(shadow, served)
    shadow.replay_one()
    assert beside.opened[0].closed.is_set()
    beside.behaviour = doubled
    offer(shadow, served)
    shadow.replay_one()
    assert observer.outcomes == ["failed", "replayed"]


def test_a_predictor_is_kept_from_replay_to_replay(
    build: Build, served: ServedModel, beside: FakeFactory
) -> None:
    """Opening one takes seconds."""
    shadow = build()
    for _ in range(3):
        offer(shadow, served)
        shadow.replay_one()
    assert len(beside.opened) == 1
    shadow.close()
    assert beside.opened[0].closed.is_set()


def test_no_more_predictors_exist_than_may(
    tmp_path: Path, build: Build, beside: FakeFactory
) -> None:
    """Also while one takes the place of another: the least recently run is closed first."""
    model = write_double(tmp_path / "three")
    config = model / "config.toml"
    third = '[[instance_group]]\nname = "third"\nbackend = "fake"\nstart = "on_demand"\n'
    config.write_text(config.read_text("utf-8") + third, "utf-8")
    registry = open_registry(tmp_path / "three", FakeFactory())
    alive = []

    def counting(inputs: Tensors) -> Tensors:
        alive.append(sum(not each.closed.is_set() for each in beside.opened))
        return doubled(inputs)

    beside.selftest = counting
    shadow = build(of=registry, groups=("spare", "third"), max_predictors=1)
    try:
        registry.load_all()
        [served] = registry.served()
        for _ in range(2):
            offer(shadow, served)
            shadow.replay_one()
    finally:
        shadow.close()
        registry.close()
    assert alive == [1, 1, 1, 1]


def test_a_predictor_that_grows_is_replaced(
    build: Build, served: ServedModel, beside: FakeFactory
) -> None:
    """Memory is bounded also for what nobody waits for."""
    shadow = build()
    offer(shadow, served)
    shadow.replay_one()
    beside.opened[0].resident = 3 << 30
    offer(shadow, served)
    shadow.replay_one()
    assert beside.opened[0].closed.is_set()


def test_what_is_no_longer_served_is_forgotten(
    build: Build,
    served: ServedModel,
    registry: ModelRegistry,
    beside: FakeFactory,
    observer: RecordingLive,
) -> None:
    """A reload closes the predictors of the version before, and drops its sample."""
    shadow = build()
    offer(shadow, served)
    shadow.replay_one()
    offer(shadow, served)
    registry.unload("double")
    shadow.replay_one()
    assert observer.outcomes == ["replayed", "dropped"]
    assert beside.opened[0].closed.is_set()


@pytest.mark.parametrize(
    ("name", "told"),
    [("natve", True), ("main", True), ("spare", False)],
    ids=["no group", "a default group", "there"],
)
def test_a_group_that_no_model_has_is_told(
    caplog: pytest.LogCaptureFixture, name: str, told: bool
) -> None:
    """It may come later by polling; a typing error would be noticed by nobody otherwise."""
    groups = tuple(InstanceGroup(name=each, backend="fake") for each in ("main", "spare"))
    warn_of_unknown_groups([name], [ModelConfig(default_group="main", instance_group=groups)])
    lines = [
        line
        for line in caplog.messages
        if f"SHADOW_GROUPS: no model has an instance group {name!r}" in line
    ]
    assert len(lines) == told
