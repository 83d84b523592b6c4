"""Delays before lost workers are replaced, and detection of crash loops."""

from collections import deque

from app.contracts.ports import Clock

WINDOW_SECONDS = 60.0
MOST_LOSSES = 5
DELAYS = (0.0, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0)
"""Seconds to wait after the first, second, ... loss within the window. The last one repeats."""
LACKING_SECONDS = 1.0
"""The delay while the system lacks resources for a process; they may be available again soon."""


class RestartBackoff:
    """Counts the losses of one group in the last minute; more than five are a crash loop.

    A worker that could not be opened for lack of memory or descriptors is not a loss.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._losses: deque[float] = deque(maxlen=len(DELAYS))

    def delay_after_loss(self) -> float:
        """Count a loss; returns the seconds to wait before the next worker is opened."""
        self._losses.append(self._clock())
        return DELAYS[self._losses_in_window() - 1]

    def in_crash_loop(self) -> bool:
        return self._losses_in_window() > MOST_LOSSES

    def _losses_in_window(self) -> int:
        oldest = self._clock() - WINDOW_SECONDS
        return sum(lost > oldest for lost in tuple(self._losses))
