"""Idle moments: when they are, and what a request does to those who wait for one."""

from __future__ import annotations

import threading

import pytest

from app.live.idle_gate import SETTLE_SECONDS, Closed, IdleGate
from app.process.suspension import Suspension
from tests.engine.fakes import PATIENCE, ManualClock


def test_processes_stand_still_while_any_request_is_answered(
    suspension: Suspension, idle_gate: IdleGate
) -> None:
    """From the first that comes to the last that leaves."""
    idle_gate.began()
    idle_gate.began()
    idle_gate.ended()
    assert suspension.held
    idle_gate.ended()
    assert not suspension.held
    assert suspension.holds == 1


def test_a_wait_ends_when_the_last_request_has_left(idle_gate: IdleGate) -> None:
    """And not before."""
    idle_gate.began()
    passed = threading.Event()

    def wait() -> None:
        idle_gate.wait()
        passed.set()

    waiter = threading.Thread(target=wait)
    waiter.start()
    assert not passed.wait(3 * SETTLE_SECONDS)
    idle_gate.ended()
    assert passed.wait(PATIENCE)
    waiter.join()


def test_nothing_begins_until_the_reply_has_left(suspension: Suspension) -> None:
    """The answer's bytes are written after ended()."""
    clock = ManualClock()
    idle_gate = IdleGate(suspension, clock=clock)
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


def test_the_end_reaches_everyone_who_waits(suspension: Suspension, idle_gate: IdleGate) -> None:
    """A shutdown never waits for an idle moment."""
    idle_gate.began()
    ended = threading.Event()

    def wait() -> None:
        with pytest.raises(Closed):
            idle_gate.wait()
        ended.set()

    waiter = threading.Thread(target=wait)
    waiter.start()
    idle_gate.close()
    assert ended.wait(PATIENCE)
    waiter.join()
    with pytest.raises(Closed):
        idle_gate.rest(PATIENCE, unless=lambda: True)
    with pytest.raises(Closed):
        idle_gate.check()


def test_a_rest_is_cut_short_by_work(idle_gate: IdleGate) -> None:
    """Work that is there already, or that comes; and not by a request that ends."""
    idle_gate.rest(PATIENCE, unless=lambda: True)
    asked, work = threading.Event(), threading.Event()

    def unless() -> bool:
        asked.set()
        return work.is_set()

    resting = threading.Thread(target=idle_gate.rest, args=(PATIENCE,), kwargs={"unless": unless})
    resting.start()
    assert asked.wait(PATIENCE)
    idle_gate.began()  # waits for the lock, which the rest has given back by then
    idle_gate.ended()
    idle_gate.wake()
    resting.join(3 * SETTLE_SECONDS)
    assert resting.is_alive()
    work.set()
    idle_gate.wake()
    resting.join(PATIENCE)
    assert not resting.is_alive()
