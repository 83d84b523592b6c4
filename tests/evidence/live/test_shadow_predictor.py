"""Predictors beside the service: tested, warmed by shape, and timed only when undisturbed; and the
idle moments that they run in."""

import asyncio
import threading
from collections.abc import Callable
from unittest.mock import Mock

import pytest

from paddlepool.contracts.errors import BackendError, WorkerCrashed
from paddlepool.evidence.live.shadow_predictor import IDLE_DELAY_SECONDS, Closed, IdleGate
from tests.engine.fakes import PATIENCE, doubled, row
from tests.evidence.live.fakes import Live, nudged


async def test_a_spare_is_proven_before_it_is_used(live: Live) -> None:
    live.beside.selftest = nudged
    with pytest.raises(BackendError, match="self-test"):
        live.predictors.open(live.served, "spare")
    assert live.beside.opened[0].closed.is_set()


async def test_a_shape_is_timed_from_its_second_run_on(live: Live) -> None:
    """The first run of a shape prepares kernels and is several times slower."""
    seen: list[tuple[int, ...]] = []

    def counting(inputs):  # type: ignore[no-untyped-def]
        seen.append(inputs["x"].shape)
        return doubled(inputs)

    live.beside.behaviour = counting
    shadow = live.predictors.open(live.served, "spare")
    for job in (row(1), row(2), row(1, 2)):
        timed = shadow.run(job)
        assert timed.seconds is not None
        assert timed.outputs["y"].tolist() == doubled(job)["y"].tolist()
    assert seen == [(1, 1), (1, 1), (1, 1), (1, 2), (1, 2)]


async def test_a_run_that_a_request_interrupts_has_outputs_and_no_time(live: Live) -> None:
    shadow = live.predictors.open(live.served, "spare")
    shadow.run(row(1))

    def interrupted(inputs):  # type: ignore[no-untyped-def]
        live.gate.began()
        live.gate.ended()
        return doubled(inputs)

    live.beside.behaviour = interrupted
    timed = shadow.run(row(1))
    assert timed.seconds is None
    assert timed.outputs["y"].tolist() == [[2]]


async def test_a_failure_while_closing_is_the_close(live: Live) -> None:
    shadow = live.predictors.open(live.served, "spare")

    def killed(inputs):  # type: ignore[no-untyped-def]
        live.gate.close()
        raise WorkerCrashed("the predictor process ended during the run (killed)")

    live.beside.behaviour = killed
    with pytest.raises(Closed):
        shadow.run(row(1))


async def test_nothing_continues_until_no_request_has_come_for_a_while(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer's bytes are written after ended(), and a client often has another request."""
    due: list[Callable[[], None]] = []
    cancelled = Mock(asyncio.TimerHandle)

    def later(seconds: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        assert seconds == IDLE_DELAY_SECONDS
        due.append(call)
        return cancelled

    monkeypatch.setattr(asyncio, "get_running_loop", lambda: Mock(call_later=later))
    idle_gate = IdleGate(live.suspension)
    waiter = threading.Thread(target=idle_gate.wait, daemon=True)
    idle_gate.began()
    idle_gate.began()
    waiter.start()
    idle_gate.ended()
    assert not due, "another request is still being answered"
    idle_gate.ended()
    idle_gate.began()
    cancelled.cancel.assert_called_once_with()
    idle_gate.ended()
    assert live.suspension.held
    assert live.suspension.holds == 1
    assert waiter.is_alive()
    due[1]()
    waiter.join(PATIENCE)
    assert not waiter.is_alive()
    assert not live.suspension.held


async def test_the_timer_is_one_of_the_event_loop(live: Live) -> None:
    idle_gate = IdleGate(live.suspension)
    for _ in range(2):
        idle_gate.began()
        idle_gate.ended()
    assert live.suspension.held
    await asyncio.wait_for(asyncio.to_thread(idle_gate.wait), PATIENCE)
    assert not live.suspension.held


async def test_the_end_reaches_everyone_who_waits(live: Live) -> None:
    live.gate.began()
    waiting = asyncio.create_task(asyncio.to_thread(live.gate.wait))
    await asyncio.sleep(0)
    live.gate.close()
    with pytest.raises(Closed):
        await waiting
    with pytest.raises(Closed):
        live.gate.rest(PATIENCE, unless=lambda: True)
    with pytest.raises(Closed):
        live.gate.check()
