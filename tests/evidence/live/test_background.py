"""The thread that compares: shadowing first, proof after a while, and a prompt end."""

import asyncio
import errno
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from paddlepool.contracts.status import UNKNOWN_EFFECT
from paddlepool.engine.registry.model import ServedModel
from paddlepool.engine.registry.promotions import Promotions
from paddlepool.evidence.canary.control import CanaryControl
from paddlepool.evidence.canary.judge import Judge
from paddlepool.evidence.live.background import Background, Prover
from paddlepool.evidence.live.chooser import Chooser
from paddlepool.evidence.live.shadow_predictor import IDLE_DELAY_SECONDS
from tests.engine.fakes import Gate, ManualClock, doubled, eventually, row
from tests.evidence.live.fakes import Live, shadow_of

Build = Callable[..., Background]


@pytest.fixture
async def build(live: Live) -> AsyncIterator[Build]:
    built: list[Background] = []

    def build(**options: Any) -> Background:
        prover = Prover(live.registry, live.predictors, which="all")
        chooser = Chooser(
            live.registry, live.predictors, precision="off", store=lambda files, choice: None
        )
        control = CanaryControl(live.registry, Promotions())
        judge = Judge(live.registry, live.predictors, control)
        built.append(Background(live.gate, shadow_of(live), prover, chooser, judge, **options))
        built[-1].start()
        return built[-1]

    yield build
    for background in built:
        background.close()


def complete_request(background: Background, served: ServedModel) -> None:
    background.began()
    background.ended()
    background.completed(served, "main", row(1), doubled(row(1)))


async def test_nothing_is_run_while_a_request_is_answered(live: Live, build: Build) -> None:
    gate = Gate()
    live.beside.selftest = gate
    background = build(start_seconds=1e9)
    background.began()
    complete_request(background, live.served)  # another one is still being answered
    assert not live.beside.specs
    background.ended()
    await gate.entered()
    gate.open()
    await eventually(lambda: bool(live.observer.outcomes))
    assert live.observer.outcomes == ["replayed"]


async def test_groups_are_proven_only_some_time_after_the_start(live: Live, build: Build) -> None:
    """A server that has just started has better things to do."""
    clock = ManualClock()
    background = build(clock=clock, start_seconds=10.0)
    complete_request(background, live.served)
    await eventually(lambda: bool(live.observer.outcomes))
    assert all(group.effect == UNKNOWN_EFFECT for group in live.served.groups())
    gate = Gate()
    live.beside.selftest = gate
    clock.advance(11)
    complete_request(background, live.served)
    await gate.entered()  # the proof opens a predictor: the replay's was open already
    gate.open()


async def test_nothing_is_tried_for_a_while_after_an_unforeseen_failure(
    live: Live, build: Build
) -> None:
    """A system that has no process to give may be short of them for long."""
    live.beside.refuse = OSError(errno.EAGAIN, "Resource temporarily unavailable")
    background = build(start_seconds=1e9)
    complete_request(background, live.served)
    await eventually(lambda: bool(live.observer.outcomes))
    for _ in range(5):
        complete_request(background, live.served)
        await asyncio.sleep(2 * IDLE_DELAY_SECONDS)
    assert live.observer.outcomes[0] == "failed"
    # The next one waits for the end of the pause.
    assert set(live.observer.outcomes[1:]) == {"dropped"}
    assert len(live.beside.specs) == 1


async def test_the_end_does_not_wait_for_an_idle_moment(build: Build) -> None:
    """A server may end while its last requests are still being answered."""
    background = build()
    background.began()
    background.close()
    await eventually(lambda: not background._thread.is_alive())
