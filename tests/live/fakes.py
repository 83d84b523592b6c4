"""An observer of the live comparison that remembers, and behaviours of predictors."""

from __future__ import annotations

import threading
from typing import Any

from app.contracts.tensors import Tensors
from tests.engine.fakes import PATIENCE


class RecordingLive:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.batches: list[dict[str, Any]] = []
        self.drifts: list[dict[str, Any]] = []
        self.outcomes: list[str] = []

    def batch_done(self, **batch: Any) -> None:
        self.batches.append(batch)

    def drifted(self, **drift: Any) -> None:
        self.drifts.append(drift)

    def shadowed(self, *, model: str, outcome: str) -> None:
        with self._changed:
            self.outcomes.append(outcome)
            self._changed.notify_all()

    def wait_outcomes(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.outcomes) >= count, PATIENCE)


def nudged(inputs: Tensors) -> Tensors:
    """2 x + 0.25: passes no self-test, so it is only for the runs after it."""
    return {"y": 2 * inputs["x"] + 0.25}  # type: ignore[operator]
