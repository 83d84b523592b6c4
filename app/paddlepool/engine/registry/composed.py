"""A composed model: a pipeline over several served models, which are its parts."""

import asyncio
import contextlib
import hashlib
import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from contextvars import Context
from typing import Any

from paddlepool.contracts.caller import CALLER
from paddlepool.contracts.errors import (
    BackendError,
    ConfigError,
    DeadlineExceeded,
    InvalidParameter,
    ManifestError,
    ModelNotReady,
    Overloaded,
    PaddlepoolError,
)
from paddlepool.contracts.ports import (
    BuildPipeline,
    Clock,
    ComposedPipeline,
    EngineObserver,
    ServedModelInfo,
)
from paddlepool.contracts.reasons import Rejection
from paddlepool.contracts.status import VersionSet
from paddlepool.engine.concurrency import in_thread
from paddlepool.engine.queue.admission import Reservation, too_slow, turns_ahead
from paddlepool.engine.queue.shape_queues import moving_average
from paddlepool.engine.registry.leases import Leased
from paddlepool.engine.registry.model import ServedModel
from paddlepool.engine.registry.request_context import CompletedRuns, ModelContext, PartOfRequest
from paddlepool.models.repository.config import ModelConfig
from paddlepool.models.repository.layout import ComposedFiles
from paddlepool.models.repository.manifest import ComposedManifest
from paddlepool.models.repository.selftest import RUN_SECONDS

log = logging.getLogger(__name__)

MARGIN = 0.75
"""A request is admitted if its estimated seconds are at most this part of those until its deadline.
The estimate is off by a fifth when other programs use the processors, and a request that is late
has wasted its first runs."""


class ComposedModel(Leased):
    """A version of a composed model on one fixed set of served versions, which it leases.

    **Invariant**: its parts never change. When one of them is replaced, the registry builds another
    ComposedModel on the new set, tests it, and swaps part and composed model in one step. Belongs
    to the event loop.

    While it is open beside the one that serves, `own_parts` are the parts that serve for it alone.
    Who closes it must close them, too.
    """

    def __init__(
        self,
        files: ComposedFiles,
        parts: Mapping[str, ServedModel],
        *,
        observer: EngineObserver,
        clock: Clock,
    ) -> None:
        """Lease the parts. A request reserves a place in the queue of the first one."""
        super().__init__()
        self.files = files
        self.name, self.version = files.name, files.version
        self.config: ModelConfig = files.config
        self.manifest: ComposedManifest = files.manifest
        self.parts = dict(parts)
        self.own_parts: tuple[ServedModel, ...] = ()
        self.info: ServedModelInfo = files.info({name: part.info for name, part in parts.items()})
        self.pipeline: ComposedPipeline | None = None
        self._observer, self._clock = observer, clock
        self._requests: dict[ModelContext, str] = {}  # admitted and not done, with their callers
        self._test: asyncio.Task[None] | None = None
        self._work: dict[str, float] = {}  # seconds that one request needs in a part's processes
        for part in self.parts.values():
            part.acquire()

    def parts_with(self, text: str | None) -> dict[str, PartOfRequest]:
        """Return each part's version and instance group for one request.

        `text` selects groups as "part:group,part:group"; other parts use their default groups.
        Raises InvalidParameter for another form, an unknown part or group, and a part that is named
        twice.
        """
        chosen: dict[str, str] = {}
        for entry in text.split(",") if text else ():
            part, _, group = entry.partition(":")
            if part not in self.parts or part in chosen or not group:
                raise InvalidParameter(
                    "this model is composed: select instance groups as part:group,part:group; its "
                    f"parts are {', '.join(self.parts)}",
                    parameter="instance_group",
                    limit=", ".join(self.parts),
                )
            names = [status.name for status in self.parts[part].groups()]
            if group not in names:
                raise InvalidParameter(
                    f"the part {part}, model {self.parts[part].name}, has no such instance group; "
                    f"it has {', '.join(names)}",
                    parameter="instance_group",
                    limit=", ".join(names),
                )
            chosen[part] = group
        return {
            part: PartOfRequest(served, chosen.get(part, served.config.default_group))
            for part, served in self.parts.items()
        }

    @contextlib.contextmanager
    def reserve(self, context: ModelContext) -> Iterator[Reservation]:
        """Count a request until the end of the block; yield the place of its first job.

        Sets `admitted` of the context: a request is admitted once, for all of its parts. Raises
        InvalidParameter (group), ModelNotReady, and Overloaded if too many requests wait, this one
        would be late, or a group may not start now.
        """
        caller = CALLER.get().name
        self._check_room_and_time(context, caller)
        first = next(iter(context.parts.values()))
        with first.served.reserve(group=first.group, deadline=context.deadline) as reservation:
            context.admitted = True
            self._requests[context] = caller
            try:
                yield reservation
            finally:
                del self._requests[context]

    def _check_room_and_time(self, context: ModelContext, caller: str) -> None:
        """Raise Overloaded if too many requests wait, or the wait exceeds MARGIN of the time left.

        Also raises the errors of ServedModel.load_of(). The wait is not checked while no other
        request is admitted. The limit on admitted requests is the number of jobs that the first
        part's group may hold, and twice that for a caller that has no request yet. The estimated
        wait is a sum over the parts. Each part adds the seconds of its queued and running jobs, and
        the usual seconds of this request and of the requests ahead that have not reached the part
        yet, divided by its number of processes.
        """
        callers = Counter(self._requests.values())
        ahead = turns_ahead(callers, caller)
        wait, limit = 0.0, 0
        for part, (served, group) in context.parts.items():
            places, processes, seconds = served.load_of(group)
            limit = limit or places
            to_come = sum(part not in request.started for request in self._requests)
            wait += seconds + (min(to_come, ahead) + 1) * self._work.get(part, 0.0) / processes
        if caller not in callers:
            limit *= 2  # as in Admission: no caller can fill the queue for the others
        left = context.deadline - self._clock()
        waiting = len(self._requests)
        if waiting >= limit:
            self._observer.rejected(model=self.name, reason=Rejection.QUEUE_FULL)
            raise Overloaded(
                f"the queue is full: {waiting} requests wait, limit {limit}",
                retry_after=wait,
                limit=limit,
                received=waiting + 1,
            )
        if waiting and wait > MARGIN * left:
            self._observer.rejected(model=self.name, reason=Rejection.DEADLINE)
            raise too_slow(wait, left, retry_after=wait)

    def record(self, completed: Mapping[str, CompletedRuns]) -> None:
        """Update the average seconds that each part works on a request.

        `completed` has the runs of an answered request, by part.
        """
        for part, runs in completed.items():
            seconds = sum(
                result.infer_seconds * rows / result.batch_rows
                for rows, result in zip(runs.rows, runs.results, strict=True)
            )
            self._work[part] = moving_average(self._work.get(part), seconds)

    async def build(self, build_pipeline: BuildPipeline) -> None:
        """Build the pipeline. Raises as BuildPipeline, and ConfigError for a task of one model."""
        pipeline = await build_pipeline(self.info)
        if not isinstance(pipeline, ComposedPipeline):
            raise ConfigError(f"{self.name}: the task {self.config.pipeline} uses one model only")
        self.pipeline = pipeline

    async def tested(self) -> None:
        """Return when test() has succeeded once; the first call starts it.

        The test continues if the caller is cancelled. If it fails, its error is raised, and the
        next call repeats it.
        """
        if self._test is None:
            # A context of its own: the sample is not counted in the quota of a caller.
            self._test = asyncio.create_task(self.test(), name="self-test", context=Context())
        test = self._test
        try:
            await asyncio.shield(test)
        except (PaddlepoolError, OSError):
            if self._test is test:
                self._test = None
            raise

    async def test(self) -> None:
        """Answer the sample request of this version, and check the answer.

        Raises ManifestError if the sample or the expected answer cannot be read, BackendError if
        the request fails or its answer is wrong, and OSError if no thread can be started.
        """
        sample, expected = await in_thread(f"{self.name} sample", self.read_sample)
        try:
            self.check(await self.answer(sample), expected)
        except PaddlepoolError as error:
            raise BackendError(f"self-test: {error.message}") from error
        except Exception as error:  # a fault of the task's code must not end the load of a part
            log.exception("%s: the pipeline failed in the self-test", self.name)
            reason = f"self-test: the pipeline raised {type(error).__name__}, see the log"
            raise BackendError(reason) from error

    async def answer(self, sample: bytes, group: str | None = None) -> Any:
        """Run a sample request, without admission; return its answer as JSON values.

        `group` selects groups as in parts_with(). The runs count for record(). Raises the errors of
        parts_with() and of the pipeline, ModelNotReady if the pipeline is not built, and
        DeadlineExceeded after RUN_SECONDS.
        """
        pipeline = self._built_pipeline()
        deadline = self._clock() + RUN_SECONDS
        context = ModelContext(deadline=deadline, parts=self.parts_with(group), admitted=True)
        try:
            async with asyncio.timeout(RUN_SECONDS):
                value = await pipeline.run(pipeline.payload_of(sample), context)
        except TimeoutError:
            raise DeadlineExceeded(
                f"no answer within {RUN_SECONDS:.0f} s", limit=RUN_SECONDS
            ) from None
        self.record(context.completed)
        return pipeline.answer_of(value)

    def check(self, answer: Any, expected: Any) -> None:
        """Raise BackendError if the answer to a sample differs too much from the expected one.

        Raises ModelNotReady if the pipeline is not built.
        """
        self._built_pipeline().check(answer, expected)

    def _built_pipeline(self) -> ComposedPipeline:
        if self.pipeline is None:
            raise ModelNotReady("the pipeline is not built")
        return self.pipeline

    def read_sample(self) -> tuple[bytes, Any]:
        """Return the sample request and the expected answer. Raises ManifestError."""
        directory, manifest = self.files.directory, self.manifest
        try:
            answer = json.loads((directory / manifest.answer).read_bytes())
            return (directory / manifest.sample).read_bytes(), answer
        except (OSError, ValueError) as error:
            raise ManifestError(f"{self.name}/{self.version}: sample: {error}") from error

    @property
    def version_set(self) -> VersionSet:
        """Its version, and that of each model that is a part."""
        return VersionSet(self.version, {part.name: part.version for part in self.parts.values()})

    def sha256(self) -> str:
        """Return a fingerprint of its files, and of the versions and files of its parts."""
        parts = [f"{part.sha256()}  {part.name}@{part.version}\n" for part in self.parts.values()]
        return hashlib.sha256("".join([self.manifest.sha256(), *parts]).encode()).hexdigest()

    @property
    def starts_on_demand(self) -> bool:
        """Whether a part's default group is started by the first request."""
        return any(part.config.starts_on_demand for part in self.parts.values())

    @property
    def faults(self) -> int:
        """Number of processes of `own_parts` that were lost; see ServedModel.faults."""
        return sum(part.faults for part in self.own_parts)

    def uses(self, name: str, *, but: object) -> bool:
        """Whether a part is a version of the model `name` other than `but`."""
        return any(part.name == name and part is not but for part in self.parts.values())

    def ready(self) -> bool:
        """Whether every part is ready."""
        return all(part.ready() for part in self.parts.values())

    async def close(self) -> None:
        """Close the pipeline and end the leases of the parts. Call it once."""
        if self.pipeline is not None:
            self.pipeline.close()
        for part in self.parts.values():
            part.release()


def single(served: ServedModel | ComposedModel) -> ServedModel:
    """Return the model itself if it takes tensors. Raises InvalidParameter if it is composed."""
    if isinstance(served, ComposedModel):
        raise InvalidParameter(
            f"model {served.name!r} is composed of {', '.join(served.config.parts.values())} and "
            f"takes no tensors: send a request of its task {served.config.pipeline}",
            parameter="model",
        )
    return served
