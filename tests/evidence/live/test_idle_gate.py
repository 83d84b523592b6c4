"""Idle moments: when they are, and what a request does to those who wait for one."""

import threading

import pytest

from app.evidence.live.shadow_predictor import SETTLE_SECONDS, Closed, IdleGate
from tests.engine.fakes import PATIENCE, ManualClock
from tests.evidence.live.fakes import Live


def test_processes_stand_still_while_any_request_is_answered(live: Live) -> None:
    live.gate.began()
    live.gate.began()
    live.gate.ended()
    assert live.suspension.held
    live.gate.ended()
    assert not live.suspension.held
    assert live.suspension.holds == 1


def test_nothing_begins_until_the_reply_has_left(live: Live) -> None:
    """The answer's bytes are written after ended()."""
    clock = ManualClock()
    idle_gate = IdleGate(live.suspension, clock=clock)
    idle_gate.began()
    idle_gate.ended()
    clock.advance(SETTLE_SECONDS / 2)
    waiter = threading.Thread(target=idle_gate.wait)
    waiter.start()
    waiter.join(SETTLE_SECONDS / 4)
    assert waiter.is_alive()
    clock.advance(SETTLE_SECONDS)
    waiter.join(PATIENCE)
    assert not waiter.is_alive()


def test_the_end_reaches_everyone_who_waits(live: Live) -> None:
    live.gate.began()
    ended = threading.Event()

    def wait() -> None:
        with pytest.raises(Closed):
            live.gate.wait()
        ended.set()

    waiter = threading.Thread(target=wait)
    waiter.start()
    live.gate.close()
    assert ended.wait(PATIENCE)
    waiter.join()
    with pytest.raises(Closed):
        live.gate.rest(PATIENCE, unless=lambda: True)
    with pytest.raises(Closed):
        live.gate.check()
