"""Back-off and the crash loop."""

from paddlepool.engine.pool.context import RestartBackoff
from tests.engine.fakes import ManualClock


def test_the_first_loss_is_replaced_at_once_and_later_ones_ever_more_slowly() -> None:
    backoff = RestartBackoff(ManualClock())
    delays = [backoff.delay_after_loss() for _ in range(11)]
    assert delays == [0, 0.25, 0.5, 1, 2, 5, 10, 20, 30, 30, 30]


def test_six_losses_within_a_minute_are_a_loop_and_time_ends_it() -> None:
    clock = ManualClock()
    backoff = RestartBackoff(clock)
    for _ in range(5):
        backoff.delay_after_loss()
        clock.advance(10)
    assert not backoff.in_crash_loop()
    backoff.delay_after_loss()
    assert backoff.in_crash_loop()
    clock.advance(10)
    assert not backoff.in_crash_loop()


def test_a_quiet_minute_forgives_everything() -> None:
    clock = ManualClock()
    backoff = RestartBackoff(clock)
    for _ in range(9):
        backoff.delay_after_loss()
    clock.advance(60)
    assert backoff.delay_after_loss() == 0
