"""Answers whole requests to a composed model beside the service, in idle moments.

A set of versions has a pipeline of its own. Its jobs run on shadow predictors, one after another;
two sets that are compared share those of the parts in which they do not differ.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from paddlepool.contracts.errors import (
    BackendError,
    DeadlineExceeded,
    ManifestError,
    ModelOutputInvalid,
    Overloaded,
    PaddlepoolError,
)
from paddlepool.contracts.ports import WHOLE, ComposedPipeline, RequestContext
from paddlepool.contracts.tensors import Tensors, all_finite
from paddlepool.engine.concurrency import in_thread
from paddlepool.engine.registry.composed import ComposedModel
from paddlepool.engine.registry.parts import joined
from paddlepool.evidence.live.shadow_predictor import Closed, ShadowPredictor, ShadowPredictors
from paddlepool.evidence.verdict.proof import Timed

REQUEST_SECONDS = 3600.0
"""Time for one request, most of which may pass while the server is busy."""

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class PartPredictors:
    """The open shadow predictors of a comparison, by model and version of the part.

    `groups` has the instance group that answers now, by model.
    """

    shadow_predictors: ShadowPredictors
    groups: Mapping[str, str]
    lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    """Held during a run: a predictor runs one job at a time."""
    _open: dict[tuple[str, int], ShadowPredictor] = field(default_factory=dict, init=False)

    def open(self, model: ComposedModel) -> None:
        """Open the predictors of a set that are not open yet.

        Raises as ShadowPredictors.open() does.
        """
        for part in model.parts.values():
            if (part.name, part.version) not in self._open:
                groups = self.groups[part.name], part.config.default_group
                predictor, _ = self.shadow_predictors.open_first(part, *groups)
                self._open[part.name, part.version] = predictor

    def of(self, model: ComposedModel, part: str) -> ShadowPredictor:
        served = model.parts[part]
        return self._open[served.name, served.version]

    def wait(self) -> None:
        """Block until no request is being answered. Raises Closed."""
        self.shadow_predictors.idle_gate.wait()

    def close(self) -> None:
        """Close all predictors. Blocks while one runs a job of a request that has ended already."""
        with self.lock:
            while self._open:
                self._open.popitem()[1].close()


@dataclass(slots=True, eq=False, kw_only=True)
class _Context(RequestContext):
    """Runs the jobs of one request; `seconds` are those of each run, None if interrupted."""

    model: ComposedModel
    predictors: PartPredictors
    seconds: list[float | None] = field(default_factory=list, init=False)

    async def infer(self, jobs: Sequence[Tensors], *, part: str = WHOLE) -> list[Tensors]:
        outputs = await in_thread("canary", partial(self._run, jobs, part))
        return [runs[0] if len(runs) == 1 else await joined(runs) for runs in outputs]

    def _run(self, jobs: Sequence[Tensors], part: str) -> list[list[Tensors]]:
        """Return the outputs of each job's runs. Blocks until the server is idle."""
        served = self.model.parts[part]
        with self.predictors.lock:
            predictor = self.predictors.of(self.model, part)
            outputs = [
                [
                    self._outputs(served.name, predictor, run.inputs)
                    for run in job.parts(served.max_rows)
                ]
                for job in served.checked(jobs)
            ]
        self.predictors.wait()  # the pipeline goes on in an idle moment, too
        return outputs

    def _outputs(self, name: str, predictor: ShadowPredictor, inputs: Tensors) -> Tensors:
        try:
            timed = predictor.run(inputs)
        except DeadlineExceeded as error:  # not the request's deadline
            raise BackendError(f"{name}: {error.message}") from error
        if not all_finite(timed.outputs):
            raise ModelOutputInvalid(f"an output of {name} contains NaN or infinity")
        self.seconds.append(timed.seconds)
        return timed.outputs  # type: ignore[no-any-return]


@dataclass(eq=False, slots=True)
class WholePredictor:
    """Answers requests with one set of versions. Owned by one thread, not that of the `loop`."""

    model: ComposedModel
    predictors: PartPredictors
    loop: asyncio.AbstractEventLoop
    shared: Set[tuple[str, int]] = frozenset()
    """Parts of the other set that is compared, by model and version."""

    def open(self) -> None:
        """Open the predictors, and answer the sample request of the model.

        Raises as ShadowPredictors.open() does, BackendError for a wrong answer, ManifestError, and
        Overloaded if a failure says nothing about the model.
        """
        self.predictors.open(self.model)
        try:
            sample, expected = self.model.read_sample()
            answer = self.run(self._pipeline.payload_of(sample)).outputs
            self.model.check(answer, expected)
        except (Overloaded, ManifestError, Closed):
            raise
        except PaddlepoolError as error:
            raise BackendError(f"self-test: {error.message}") from error
        except Exception as error:
            raise BackendError(f"self-test: {_raised(self.model, error)}") from error

    def run(self, payload: Any) -> Timed:
        """Return the answer to a request, and the seconds of all its runs.

        Raises Closed, Overloaded if the failure says nothing about the model, and other
        PaddlepoolErrors.
        """
        try:
            self.predictors.open(self.model)
        except OSError as error:  # the system cannot start a process now
            raise Overloaded(f"cannot start: {error.strerror}") from error
        return asyncio.run_coroutine_threadsafe(self._answer(payload), self.loop).result()

    async def _answer(self, payload: Any) -> Timed:
        context = _Context(
            deadline=time.monotonic() + REQUEST_SECONDS,
            model=self.model,
            predictors=self.predictors,
        )
        pipeline = self._pipeline
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                value = await pipeline.run(payload, context)
            answer = pipeline.answer_of(value)
        except (Overloaded, DeadlineExceeded, OSError) as error:
            raise Overloaded(f"not answered: {error}") from error
        except (PaddlepoolError, Closed):
            raise
        except Exception as error:
            raise BackendError(_raised(self.model, error)) from error
        known = [seconds for seconds in context.seconds if seconds is not None]
        return Timed(answer, sum(known) if len(known) == len(context.seconds) else None)

    @property
    def _pipeline(self) -> ComposedPipeline:
        assert self.model.pipeline is not None  # noqa: S101  Canaries.compose() has built it
        return self.model.pipeline

    def resident_bytes(self) -> int:
        """Return the memory of its largest process that it does not share; 0 if it has none."""
        own = self.model.version_set.parts.items() - self.shared
        processes = [
            self.predictors.of(self.model, part)
            for part, served in self.model.parts.items()
            if (served.name, served.version) in own
        ]
        return max((process.resident_bytes() for process in processes), default=0)

    def close(self) -> None:
        """Close the predictors, also those that it shares; the next run opens them again."""
        self.predictors.close()


def _raised(model: ComposedModel, error: Exception) -> str:
    """Log a fault of the task's code, and return a text for people."""
    log.error("%s: the pipeline failed on a request", model.name, exc_info=error)
    return f"the pipeline raised {type(error).__name__}, see the log"


def whole_agreement(
    model: ComposedModel, measure: Callable[[Any, Any], float] | None
) -> Callable[[Any, Any], float]:
    """Return a function that measures the agreement of two answers, from 0 to 1.

    It is the task's `measure`. Without one, answers agree if they pass the pipeline's check. The
    agreement of answers that cannot be compared is 0.
    """

    def agreement(answer: Any, expected: Any) -> float:
        try:
            if measure is not None:
                return measure(answer, expected)
            model.check(answer, expected)
        except BackendError:
            return 0.0
        except Exception as error:
            _raised(model, error)
            return 0.0
        return 1.0

    return agreement
