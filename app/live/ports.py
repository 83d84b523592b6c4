"""What the live comparison reports, and what it asks of the registry."""

from __future__ import annotations

from typing import Protocol

from app.contracts.reasons import ShadowOutcome
from app.engine.registry.model import ServedModel


class LiveObserver(Protocol):
    """Receives the results of runs in idle moments; must not block or raise."""

    def batch_done(
        self, *, model: str, version: int, group: str, rows: int, seconds: float
    ) -> None: ...

    def drifted(self, *, model: str, group: str, drift: float, agreement: float | None) -> None:
        """One replay against the answer: largest absolute difference, and the task's measure."""

    def shadowed(self, *, model: str, outcome: ShadowOutcome) -> None:
        """One sampled request is finished."""


class Served(Protocol):
    """What is served now; the registry's part that is needed here."""

    def served(self) -> tuple[ServedModel, ...]: ...
