"""Programs timed in turns, by the processor time they take: what else is running counts little."""

import time
from collections.abc import Callable


def seconds(*calls: Callable[[], object], rounds: int) -> list[float]:
    """The fastest of `rounds` calls of each, in seconds, after one call of each to warm up.

    Of processor time, all threads of this process together: waiting for a core does not count.
    """
    for call in calls:
        call()
    best = [float("inf")] * len(calls)
    for _ in range(rounds):
        for index, call in enumerate(calls):
            start = time.process_time()
            call()
            best[index] = min(best[index], time.process_time() - start)
    return best
