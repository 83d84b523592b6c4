"""Opens, tests and warms up the predictors of one configuration."""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from app.contracts.errors import BackendError, DeadlineExceeded
from app.contracts.ports import Predictor, PredictorFactory, PredictorSpec
from app.contracts.tensors import Tensors, shape_key
from app.engine.awaiting import in_thread
from app.engine.pool.context import EngineContext
from app.engine.queue.job import ShapeKey
from app.models.repository.selftest import SelfTest

FIRST_RUN_SECONDS = 60.0
SHORT_RUN_SECONDS = 0.25

Usual = Sequence[tuple[ShapeKey, float]]
"""The usual seconds of a run, for each shape."""


@dataclass(slots=True, eq=False)
class Opening:
    """Opens predictors of one configuration.

    Each open method raises ConfigError or BackendError if the model is rejected, and WorkerCrashed
    or OSError if the process could not be started or died; a retry may succeed then.
    """

    name: str
    spec: PredictorSpec
    selftest: SelfTest
    warmups: tuple[Tensors, ...]
    context: EngineContext
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _first_opened: float | None = field(default=None, init=False)

    def start_up_seconds(self, since: float, until: float) -> float:
        """Seconds of the interval `since` to `until` before the first predictor was open."""
        opened = until if self._first_opened is None else min(self._first_opened, until)
        return max(0.0, opened - since)

    def forget(self) -> None:
        """Record that all predictors were closed: the next one is the first again."""
        self._first_opened = None

    async def open(self, *, timed: bool, gently: bool) -> tuple[Predictor, Usual]:
        """Open a predictor; also returns the usual seconds of its runs if `timed`.

        With `gently`, predictors are opened one at a time, with the processor time that serving
        predictors leave. Their processes may be suspended meanwhile, so warm-up runs are not timed;
        the first jobs are timed instead.
        """
        work = partial(self._opened, timed=timed and not gently, gently=gently)
        async with self._turn if gently else contextlib.nullcontext():
            opened = await in_thread(f"{self.name} opening", work)
        if self._first_opened is None:
            self._first_opened = self.context.clock()
        return opened

    def open_shadow(self, open_predictor: PredictorFactory) -> Predictor:
        """Open and test a predictor that gets no jobs of the group.

        Blocks; may be called in any thread. It may also raise DeadlineExceeded.
        """
        return self.selftest.opened(open_predictor, self.spec, timeout=FIRST_RUN_SECONDS)

    def _opened(self, *, timed: bool, gently: bool) -> tuple[Predictor, Usual]:
        """Open a predictor, blocking until it is tested and warm."""
        suspension = self.context.yielding.suspension if gently else None
        predictor = self.context.open_predictor(self.spec, suspension=suspension)
        try:
            self.selftest.check(predictor, timeout=FIRST_RUN_SECONDS)
            usual = self._warm_up(predictor, timed)
        except DeadlineExceeded as error:
            predictor.close()
            raise BackendError(f"a first run took more than {FIRST_RUN_SECONDS:.0f} s") from error
        except BaseException:
            predictor.close()
            raise
        if gently:
            predictor.settle()
        return predictor, usual

    def _warm_up(self, predictor: Predictor, timed: bool) -> Usual:
        """Run every configured shape and measure its usual time.

        A shape's first run takes up to eight times as long as later ones. A short run is therefore
        repeated, and the second time counts. If not `timed`, the self-test's shape is not run
        again: a replacement is ready sooner, and a reload delays requests less.
        """
        tested = [array.shape for array in self.selftest.inputs.values()]
        usual = []
        for inputs in self.warmups:
            if not timed:
                if [array.shape for array in inputs.values()] != tested:
                    predictor.run(inputs, timeout=FIRST_RUN_SECONDS)
                continue
            seconds = self._timed_run(predictor, inputs)
            if seconds < SHORT_RUN_SECONDS:
                seconds = self._timed_run(predictor, inputs)
            usual.append((shape_key(inputs), seconds))
        return usual

    def _timed_run(self, predictor: Predictor, inputs: Tensors) -> float:
        began = self.context.clock()
        predictor.run(inputs, timeout=FIRST_RUN_SECONDS)
        return self.context.clock() - began
