"""When predictors that are being opened stand still."""

from __future__ import annotations

import pytest

from app.engine.pool.context import Yielding


@pytest.mark.parametrize("cores", [0.5, 1, 2])
def test_on_few_cores_every_run_holds_what_is_opened(cores: float) -> None:
    """One core is left at most, and the rest of the server needs that."""
    yielding = Yielding(cores)
    assert not yielding.suspension.held
    yielding.serving(+1)
    assert yielding.suspension.held
    yielding.serving(-1)
    assert not yielding.suspension.held


def test_on_many_cores_it_waits_until_all_but_one_are_busy() -> None:
    """Threads count, not runs: a run may have several."""
    yielding = Yielding(4)
    yielding.serving(+2)
    assert not yielding.suspension.held
    yielding.serving(+1)
    assert yielding.suspension.held
    yielding.serving(-1)
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
