"""Back-off and the crash loop."""

from __future__ import annotations

from app.engine.pool.restart_backoff import RestartBackoff
from tests.engine.fakes import ManualClock


def test_the_first_loss_is_replaced_at_once_and_later_ones_ever_more_slowly() -> None:
    """Each delay within a minute is longer than the one before, up to half a minute."""
    guard = RestartBackoff(ManualClock())
    assert [guard.record() for _ in range(11)] == [0, 0.25, 0.5, 1, 2, 5, 10, 20, 30, 30, 30]


def test_six_losses_within_a_minute_are_a_loop_and_time_ends_it() -> None:
    """Five are not; a minute after the first of six the loop is over."""
    clock = ManualClock()
    guard = RestartBackoff(clock)
    for _ in range(5):
        guard.record()
        clock.advance(10)
    assert not guard.looping()
    guard.record()
    assert guard.looping()
    clock.advance(10)
    assert not guard.looping()


def test_a_quiet_minute_forgives_everything() -> None:
    """The next loss is again replaced at once."""
    clock = ManualClock()
    guard = RestartBackoff(clock)
    for _ in range(9):
        guard.record()
    clock.advance(60)
    assert guard.record() == 0
