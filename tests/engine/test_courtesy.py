"""When predictors that are being opened stand still."""

from __future__ import annotations

import pytest

from app.engine.courtesy import Courtesy


@pytest.mark.parametrize("cores", [0.5, 1, 2])
def test_on_few_cores_every_run_holds_what_is_opened(cores: float) -> None:
    """One core is left at most, and the rest of the server needs that."""
    courtesy = Courtesy(cores)
    assert not courtesy.pause.held
    with courtesy.serving(1):
        assert courtesy.pause.held
    assert not courtesy.pause.held


def test_on_many_cores_it_waits_until_all_but_one_are_busy() -> None:
    """Threads count, not runs: a run may have several."""
    courtesy = Courtesy(4)
    with courtesy.serving(2):
        assert not courtesy.pause.held
        with courtesy.serving(1):
            assert courtesy.pause.held
        assert not courtesy.pause.held


def test_it_is_held_once_however_many_serve() -> None:
    """Holding again would only cost time, and the last of them releases it."""
    courtesy = Courtesy(2)
    with courtesy.serving(1), courtesy.serving(1):
        assert courtesy.pause.holds == 1
    assert not courtesy.pause.held


def test_a_run_that_fails_is_over_too() -> None:
    """Else nothing could ever be loaded again."""
    courtesy = Courtesy(2)
    with pytest.raises(ValueError, match="boom"), courtesy.serving(1):
        raise ValueError("boom")
    assert not courtesy.pause.held
