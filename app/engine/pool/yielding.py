"""While a model is loaded anew its predictors stand still, as long as others need the cores."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from app.process.suspension import Suspension
from app.resources import available_cores

SLICE_SECONDS = 0.01
"""What a predictor that is being opened gets of every tenth of a second in any case: a server that
is never idle can be reloaded, too."""


class Yielding:
    """Thread-safe. Predictors are opened with its `suspension`; those that serve run in serving().

    Priorities alone would not do: a process that has lowered its own cannot raise it again, and
    oneDNN prepares a shape for each thread anew, so that no other thread can warm one up.
    """

    def __init__(self, cores: float | None = None) -> None:
        self.suspension = Suspension(slice_seconds=SLICE_SECONDS)
        # One core for what is opened, and one for all that is neither of the two.
        self._limit = max(1.0, (available_cores() if cores is None else cores) - 1)
        self._busy = 0
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def serving(self, threads: int) -> Iterator[None]:
        """A run for users on so many threads."""
        self._change(+threads)
        try:
            yield
        finally:
            self._change(-threads)

    def _change(self, threads: int) -> None:
        with self._lock:
            self._busy += threads
            crowded = self._busy >= self._limit
            if crowded and not self.suspension.held:
                self.suspension.hold()
            elif not crowded and self.suspension.held:
                self.suspension.release()
