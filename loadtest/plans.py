"""The number of users at each moment of a load."""

import math

PLANS = ("step", "spike")
"""Five equal steps up to the peak; a fifth of the peak, and all of it in the middle fifth."""
ARRIVALS = "arrivals"
"""The open plan: requests arrive at a constant rate, however long earlier ones take."""


def users_at(seconds: float, *, plan: str, duration: float, peak: int) -> int | None:
    """Users of a closed plan at this moment; None when the load is over."""
    if seconds >= duration:
        return None
    fifth = int(5 * seconds / duration)
    fifths = {"step": fifth + 1, "spike": 5 if fifth == 2 else 1}
    return max(1, math.ceil(peak * fifths[plan] / 5))
