"""When predictors that are being opened stand still."""

import pytest

from paddlepool.engine.pool.context import Yielding


@pytest.mark.parametrize(
    ("cores", "busy", "one_more"), [(0.5, 0, 1), (1, 0, 1), (2, 0, 1), (4, 2, 1), (4, 0, 3)]
)
def test_what_is_opened_stands_still_while_all_cores_but_one_are_busy(
    cores: float, busy: int, one_more: int
) -> None:
    """On few cores each run holds it. Threads count, not runs: a run may have several."""
    yielding = Yielding(cores)
    yielding.serving(busy)
    assert not yielding.suspension.held
    yielding.serving(one_more)
    assert yielding.suspension.held
    yielding.serving(-one_more)
    assert not yielding.suspension.held


def test_it_is_held_once_however_many_serve() -> None:
    """Holding again would only cost time, and the last of them releases it."""
    yielding = Yielding(2)
    for threads in (+1, +1, -1):
        yielding.serving(threads)
        assert yielding.suspension.held
    assert yielding.suspension.holds == 1
    yielding.serving(-1)
    assert not yielding.suspension.held
