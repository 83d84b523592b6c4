"""A predictor beside the service: runs in idle moments, and knows when a run was interrupted."""

from __future__ import annotations

from dataclasses import dataclass

from app.engine.job import ShapeKey
from app.engine.model import ServedModel
from app.engine.pause import Pause
from app.engine.ports import Predictor, PredictorFactory
from app.engine.tensors import Tensors, shape_key
from app.errors import PaddlepoolError
from app.live.quiet import Quiet

RUN_SECONDS = 120.0
"""Of the process's own running: the time it stands still does not count."""


@dataclass(frozen=True, slots=True)
class Timed:
    """One run's outputs; `seconds` is None when requests interrupted it."""

    outputs: Tensors
    seconds: float | None


class Spare:
    """Owned by one thread. A shape is run once untimed before it is timed."""

    def __init__(self, predictor: Predictor, *, pause: Pause, quiet: Quiet) -> None:
        self._predictor = predictor
        self._pause = pause
        self._quiet = quiet
        self._warm: set[ShapeKey] = set()

    def run(self, inputs: Tensors) -> Timed:
        """Wait for an idle moment and run. Raises Closed, BackendError, WorkerCrashed."""
        try:
            key = shape_key(inputs)
            if key not in self._warm:
                self._quiet.wait()
                self._predictor.run(inputs, timeout=RUN_SECONDS)
                self._warm.add(key)
            self._quiet.wait()
            holds = self._pause.holds
            self._predictor.send(inputs)
            ran = self._predictor.receive(timeout=RUN_SECONDS)
        except PaddlepoolError:
            self._quiet.check()
            raise
        interrupted = self._pause.held or self._pause.holds != holds
        return Timed(ran.outputs, None if interrupted else ran.seconds)

    def resident_bytes(self) -> int:
        return self._predictor.resident_bytes()

    def close(self) -> None:
        self._predictor.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Spares:
    """Opens spares. `open_predictor` must open processes that belong to the pause."""

    open_predictor: PredictorFactory
    pause: Pause
    quiet: Quiet

    def open(self, served: ServedModel, group: str) -> Spare:
        """Waits for an idle moment. Raises Closed, and as ServedModel.open_spare does."""
        self.quiet.wait()
        try:
            predictor = served.open_spare(group, self.open_predictor)
        except PaddlepoolError:
            self.quiet.check()
            raise
        return Spare(predictor, pause=self.pause, quiet=self.quiet)
