"""A predictor that runs only in idle moments and reports whether a run was interrupted."""

import asyncio
import statistics
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from paddlepool.contracts.errors import (
    BackendError,
    ConfigError,
    InvalidParameter,
    ManifestError,
    PaddlepoolError,
    WorkerCrashed,
)
from paddlepool.contracts.ports import Predictor, PredictorFactory
from paddlepool.contracts.tensors import Tensors, shape_key
from paddlepool.engine.process.suspension import Suspension
from paddlepool.engine.queue.job import ShapeKey
from paddlepool.engine.registry.model import ServedModel
from paddlepool.evidence.verdict.proof import Timed

IDLE_DELAY_SECONDS = 0.02
"""Pause between the last answer and background work. It leaves time to send the answer's bytes, and
for the client's next request to arrive."""


class Closed(Exception):
    """The server is shutting down."""


class IdleGate:
    """Lets background work run only while no request is being answered.

    began() and ended() are called from the event loop, the other methods from any thread.

    **Invariant**: from began() until IDLE_DELAY_SECONDS after the last ended(), every process of
    `suspension` is stopped.
    """

    def __init__(self, suspension: Suspension) -> None:
        self.suspension = suspension
        self._requests = 0
        self._idle_timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        # Separate from _changed: only threads with work to do wait here.
        self._idle = threading.Condition(self._lock)

    def began(self) -> None:
        self._requests += 1
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if not self.suspension.held:
            self.suspension.hold()

    def ended(self) -> None:
        self._requests -= 1
        if self._requests == 0:
            loop = asyncio.get_running_loop()
            self._idle_timer = loop.call_later(IDLE_DELAY_SECONDS, self._on_idle)

    def _on_idle(self) -> None:
        with self._idle:
            self.suspension.release()
            self._idle.notify_all()

    def wait(self) -> None:
        """Block until background work may run. Raises Closed."""
        with self._idle:
            self._idle.wait_for(lambda: self._closed or not self.suspension.held)
            self.check()

    def rest(self, seconds: float, *, unless: Callable[[], bool]) -> None:
        """Block for at most `seconds`, or until `unless()` is true. Raises Closed.

        `unless()` is called at the start and after each wake().
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or unless(), seconds)
            self.check()

    def check(self) -> None:
        """Raise Closed if close() was called, which is then the likely cause of a failed run."""
        if self._closed:
            raise Closed

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._idle.notify_all()
        self.suspension.end()


RUN_SECONDS = 120.0
"""Timeout of a run; the time for which the process is stopped does not count."""


@dataclass(slots=True, eq=False)
class ShadowPredictor:
    """A predictor owned by one thread.

    Inputs of a new shape_key() are run untimed before a timed run.
    """

    predictor: Predictor
    idle_gate: IdleGate
    warm: set[ShapeKey] = field(default_factory=set, init=False)

    def run(self, inputs: Tensors) -> Timed:
        """Wait for an idle moment and run. Raises Closed and the errors of Predictor.run()."""
        return run_together([self], inputs)

    def resident_bytes(self) -> int:
        return self.predictor.resident_bytes()

    def close(self) -> None:
        self.predictor.close()


def run_together(predictors: Sequence[ShadowPredictor], inputs: Tensors) -> Timed:
    """Run all predictors at once; return the first one's outputs and the mean seconds.

    Waits for an idle moment first. The seconds are None if a request interrupted the runs. Raises
    the errors of ShadowPredictor.run(); the other predictors' runs then continue.
    """
    idle_gate = predictors[0].idle_gate
    suspension, shape = idle_gate.suspension, shape_key(inputs)
    try:
        for predictor in predictors:
            if shape not in predictor.warm:
                idle_gate.wait()
                predictor.predictor.run(inputs, timeout=RUN_SECONDS)
                predictor.warm.add(shape)
        idle_gate.wait()
        holds = suspension.holds
        for predictor in predictors:
            predictor.predictor.put(inputs)
        for predictor in predictors:
            predictor.predictor.send(inputs)
        results = [predictor.predictor.receive(timeout=RUN_SECONDS) for predictor in predictors]
    except PaddlepoolError:
        idle_gate.check()
        raise
    interrupted = suspension.held or suspension.holds != holds
    seconds = statistics.fmean(result.seconds for result in results)
    return Timed(results[0].outputs, None if interrupted else seconds)


@dataclass(frozen=True, slots=True)
class ShadowPredictors:
    """Opens shadow predictors in processes that the suspension of `idle_gate` can stop."""

    open_predictor: PredictorFactory
    idle_gate: IdleGate

    def open(self, served: ServedModel, group: str) -> ShadowPredictor:
        """Wait until idle, then open a predictor.

        Raises Closed and the errors of ServedModel.open_shadow().
        """
        self.idle_gate.wait()
        try:
            predictor = served.open_shadow(group, self.open_predictor)
        except PaddlepoolError:
            self.idle_gate.check()
            raise
        return ShadowPredictor(predictor, self.idle_gate)

    def open_first(self, served: ServedModel, *groups: str) -> tuple[ShadowPredictor, str]:
        """Open a predictor of the first of these groups that can start; return it and the group.

        Raises as open() does. If a process has died, another group is not tried.
        """
        *others, last = dict.fromkeys(groups)
        for group in others:
            with suppress(BackendError, ConfigError, InvalidParameter):
                return self.open(served, group), group
        return self.open(served, last), last


class FinalFailures:
    """Decides which failures of a group are final: the group is not tried again after those.

    A group's first crash is not final, because the system may have killed the process for lack of
    memory; a second one is. A failure other than a crash is not final if the version's files have
    changed or cannot be read: it then says nothing about the group.
    """

    def __init__(self) -> None:
        self._died: WeakKeyDictionary[ServedModel, set[str]] = WeakKeyDictionary()

    def is_final(self, error: PaddlepoolError, served: ServedModel, group: str) -> bool:
        """Return whether this failure of the group is final. Remembers a crash of the group."""
        if not isinstance(error, WorkerCrashed):
            return _has_its_files(served)
        died = self._died.setdefault(served, set())
        again = group in died
        died.add(group)
        return again


def _has_its_files(served: ServedModel) -> bool:
    try:
        served.files.verify_again(low_priority=True)
    except (ManifestError, OSError):
        return False
    return True
