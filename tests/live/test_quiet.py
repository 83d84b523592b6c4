"""Idle moments: when they are, and what a request does to those who wait for one."""

from __future__ import annotations

import threading

import pytest

from app.engine.pause import Pause
from app.live.quiet import SETTLE_SECONDS, Closed, Quiet
from tests.engine.fakes import PATIENCE, ManualClock


def test_processes_stand_still_while_any_request_is_answered(pause: Pause, quiet: Quiet) -> None:
    """From the first that comes to the last that leaves."""
    quiet.began()
    quiet.began()
    quiet.ended()
    assert pause.held
    quiet.ended()
    assert not pause.held
    assert pause.holds == 1


def test_a_wait_ends_when_the_last_request_has_left(quiet: Quiet) -> None:
    """And not before."""
    quiet.began()
    passed = threading.Event()

    def wait() -> None:
        quiet.wait()
        passed.set()

    waiter = threading.Thread(target=wait)
    waiter.start()
    assert not passed.wait(3 * SETTLE_SECONDS)
    quiet.ended()
    assert passed.wait(PATIENCE)
    waiter.join()


def test_nothing_begins_until_the_reply_has_left(pause: Pause) -> None:
    """The answer's bytes are written after ended()."""
    clock = ManualClock()
    quiet = Quiet(pause, clock=clock)
    quiet.began()
    quiet.ended()
    clock.advance(SETTLE_SECONDS / 2)
    waiter = threading.Thread(target=quiet.wait)
    waiter.start()
    waiter.join(SETTLE_SECONDS / 4)
    assert waiter.is_alive()
    clock.advance(SETTLE_SECONDS)
    waiter.join(PATIENCE)
    assert not waiter.is_alive()


def test_the_end_reaches_everyone_who_waits(pause: Pause, quiet: Quiet) -> None:
    """A shutdown never waits for an idle moment."""
    quiet.began()
    ended = threading.Event()

    def wait() -> None:
        with pytest.raises(Closed):
            quiet.wait()
        ended.set()

    waiter = threading.Thread(target=wait)
    waiter.start()
    quiet.close()
    assert ended.wait(PATIENCE)
    waiter.join()
    with pytest.raises(Closed):
        quiet.rest(PATIENCE, unless=lambda: True)
    with pytest.raises(Closed):
        quiet.check()


def test_a_rest_is_cut_short_by_work(quiet: Quiet) -> None:
    """Work that is there already, or that comes."""
    quiet.rest(PATIENCE, unless=lambda: True)
    woken = threading.Thread(target=quiet.rest, args=(PATIENCE,), kwargs={"unless": bool})
    woken.start()
    while woken.is_alive():
        quiet.wake()
        woken.join(0.005)
