"""The thread that compares: shadowing first, proof after a while, and a prompt end."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from app.contracts.status import UNKNOWN_EFFECT
from app.engine.registry.model import ServedModel
from app.engine.registry.registry import ModelRegistry
from app.live.background import Background
from app.live.chooser import Chooser
from app.live.idle_gate import SETTLE_SECONDS, IdleGate
from app.live.prover import Prover
from app.live.shadow import Shadow
from app.live.shadow_predictor import ShadowPredictors
from tests.engine.fakes import FakeFactory, Gate, ManualClock, doubled, row, wait_until
from tests.live.fakes import RecordingLive

Build = Callable[..., Background]


@pytest.fixture
def observer() -> RecordingLive:
    return RecordingLive()


@pytest.fixture
def build(
    registry: ModelRegistry,
    shadow_predictors: ShadowPredictors,
    idle_gate: IdleGate,
    observer: RecordingLive,
) -> Iterator[Build]:
    built: list[Background] = []

    def build(**options: Any) -> Background:
        shadow = Shadow(
            registry,
            shadow_predictors,
            fraction=1.0,
            groups=("spare",),
            max_predictors=1,
            observer=observer,
            agreement_of=lambda info: None,
        )
        prover = Prover(registry, shadow_predictors, which="all")
        chooser = Chooser(
            registry, shadow_predictors, precision="off", keep=lambda files, choice: None
        )
        parts: dict[str, Any] = {"shadow": shadow, "prover": prover, "chooser": chooser}
        built.append(Background(idle_gate, **parts | options))
        built[-1].start()
        return built[-1]

    yield build
    for background in built:
        background.close()


def answer(background: Background, served: ServedModel) -> None:
    background.began()
    background.ended()
    background.answered(served, "main", [row(1)], [doubled(row(1))])


def test_an_answered_request_is_replayed(
    build: Build, served: ServedModel, observer: RecordingLive
) -> None:
    """In its own thread, woken at once."""
    answer(build(start_seconds=1e9), served)
    observer.wait_outcomes(1)
    assert observer.outcomes == ["replayed"]


def test_nothing_is_run_while_a_request_is_answered(
    build: Build, served: ServedModel, beside: FakeFactory, observer: RecordingLive
) -> None:
    """The replay of the first waits until the second has left."""
    gate = Gate()
    beside.selftest = gate
    background = build(start_seconds=1e9)
    background.began()
    answer(background, served)  # another one is still being answered
    assert not beside.specs
    background.ended()
    gate.wait_entered()
    gate.open()
    observer.wait_outcomes(1)
    assert observer.outcomes == ["replayed"]


def test_groups_are_proven_only_some_time_after_the_start(
    build: Build, served: ServedModel, beside: FakeFactory, observer: RecordingLive
) -> None:
    """A server that has just started has better things to do."""
    clock = ManualClock()
    background = build(clock=clock, start_seconds=10.0)
    answer(background, served)
    observer.wait_outcomes(1)
    assert all(group.effect == UNKNOWN_EFFECT for group in served.groups())
    gate = Gate()
    beside.selftest = gate
    clock.advance(11)
    answer(background, served)
    gate.wait_entered()  # the proof opens a predictor: the replay's was open already
    gate.open()


def test_nothing_is_tried_for_a_while_after_an_unforeseen_failure(
    build: Build, served: ServedModel, beside: FakeFactory, observer: RecordingLive
) -> None:
    """However many requests are answered meanwhile: a system that has no process to give may be
    short of them for long."""
    beside.refuse = OSError(errno.EAGAIN, "Resource temporarily unavailable")
    background = build(start_seconds=1e9)
    answer(background, served)
    observer.wait_outcomes(1)
    for _ in range(5):
        answer(background, served)
        time.sleep(2 * SETTLE_SECONDS)
    assert observer.outcomes[0] == "failed"
    assert set(observer.outcomes[1:]) == {"dropped"}  # the next one waits for the end of the pause
    assert len(beside.specs) == 1


def test_the_end_does_not_wait_for_an_idle_moment(build: Build) -> None:
    """A server may end while its last requests are still being answered."""
    background = build()
    background.began()
    background.close()
    wait_until(lambda: not background.alive())
