"""Two programs timed in turns, so that a busy machine slows both alike."""

import time
from collections.abc import Callable


def seconds(*calls: Callable[[], object], rounds: int) -> list[float]:
    """The fastest of `rounds` calls of each, in seconds, after one call of each to warm up."""
    for call in calls:
        call()
    best = [float("inf")] * len(calls)
    for _ in range(rounds):
        for index, call in enumerate(calls):
            start = time.perf_counter()
            call()
            best[index] = min(best[index], time.perf_counter() - start)
    return best
