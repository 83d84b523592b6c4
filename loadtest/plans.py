"""The number of users at each moment of a load: pure functions of the time."""

import math
from collections.abc import Callable

STEPS = 5
SPIKE_FROM, SPIKE_TO = 0.4, 0.6


def step(share: float, *, peak: int) -> int:
    """Five equal steps up to `peak`; `share` is the elapsed share of the load, 0 to 1."""
    return max(1, math.ceil(peak * (math.floor(share * STEPS) + 1) / STEPS))


def spike(share: float, *, peak: int) -> int:
    """A fifth of `peak`, and all of it in the middle fifth of the time."""
    return peak if SPIKE_FROM <= share < SPIKE_TO else max(1, math.ceil(peak / 5))


PLANS: dict[str, Callable[..., int]] = {"step": step, "spike": spike}
ARRIVALS = "arrivals"
"""The open plan: requests arrive at a constant rate, however long earlier ones take."""


def users_at(seconds: float, *, plan: str, duration: float, peak: int) -> int | None:
    """Users of a closed plan at this moment; None when the load is over."""
    if seconds >= duration:
        return None
    return PLANS[plan](seconds / duration, peak=peak)
