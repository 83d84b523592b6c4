"""A served model version: checks jobs, submits them to its groups, and counts leases."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from paddlepool.contracts import ports
from paddlepool.contracts.errors import (
    ConfigError,
    InvalidParameter,
    InvalidTensor,
    PaddlepoolError,
)
from paddlepool.contracts.ports import InferResult, Predictor
from paddlepool.contracts.status import Choice, Effect, GroupStatus, VersionSet
from paddlepool.contracts.tensors import Tensors, TensorSpec, shape_key
from paddlepool.engine.pool.context import EngineContext
from paddlepool.engine.pool.group import Group, Statistics
from paddlepool.engine.queue.admission import Reservation
from paddlepool.engine.queue.job import Job, ShapeKey
from paddlepool.engine.registry.axes import EqualAxes, RaggedAxes
from paddlepool.engine.registry.leases import Leased
from paddlepool.engine.registry.parts import MAX_PARTS, CheckedJob
from paddlepool.models.repository.config import ModelConfig
from paddlepool.models.repository.layout import ModelFiles
from paddlepool.models.repository.selftest import SelfTest, too_small

PINNED = "config.toml names it"
UNDECIDED = "it serves until the candidates have been measured, in idle moments"

WARMUP_BYTES = 64 << 20
"""Maximum bytes of the tensors of one [[warmup]]."""

REMEMBERED_SHAPES = 256
"""Number of combinations of shapes that are remembered as valid; most requests repeat one."""

Shapes = tuple[tuple[str, np.dtype[Any], tuple[int, ...]], ...]

log = logging.getLogger(__name__)


def first_choice(config: ModelConfig, *, reason: str = UNDECIDED) -> Choice:
    """Return the Choice of the default group of `config` before candidates are measured.

    `reason` is not used if config.toml names the default group.
    """
    if config.first_group is None:
        return Choice(group=config.default_group, by="config", reason=PINNED)
    return Choice(group=config.default_group, by="start", reason=reason)


def warmup_inputs(config: ModelConfig, inputs: tuple[TensorSpec, ...]) -> tuple[Tensors, ...]:
    """Return the tensors of every [[warmup]], smallest first, filled with ones.

    Each tensor is a view of one number and takes no memory in this process. A [[warmup]] of one row
    is enough: the first run of a shape is slow (oneDNN prepares its primitives, 30-60 ms for the
    emotion model), but the first full batch of a warm shape costs at most 20 ms more than the next.

    Ragged axes are padded as in a request; shapes that are then equal are returned once. Raises
    ConfigError if names or shapes do not fit the model's inputs, a size is above the `max` of a
    ragged axis, or the tensors of one [[warmup]] have more than WARMUP_BYTES.
    """
    ragged = RaggedAxes(config, inputs)
    runs: dict[tuple[tuple[str, tuple[int, ...]], ...], Tensors] = {}
    for warmup in config.warmup:
        if unknown := set(warmup.shapes) ^ {spec.name for spec in inputs}:
            raise ConfigError(
                f"warmup shapes must name {', '.join(spec.name for spec in inputs)}; "
                f"these are unknown or missing: {', '.join(sorted(unknown))}"
            )
        for spec in inputs:
            if not spec.admits_shape(shape := warmup.shapes[spec.name]):
                raise ConfigError(
                    f"warmup shape {list(shape)} does not fit input {spec.name!r} "
                    f"of shape {list(spec.shape)}"
                )
        try:
            ragged.check(warmup.shapes)
        except InvalidTensor as error:
            raise ConfigError(f"warmup shape: {error.message}") from error
        shapes = {name: ragged.padded_shape(name, shape) for name, shape in warmup.shapes.items()}
        if (total := sum(_nbytes(spec, shapes[spec.name]) for spec in inputs)) > WARMUP_BYTES:
            raise ConfigError(
                f"the tensors of a [[warmup]] have {total} bytes, the limit is {WARMUP_BYTES}"
            )
        ones = {spec.name: np.ones((), spec.dtype) for spec in inputs}
        run = {name: np.broadcast_to(ones[name], shapes[name]) for name in ones}
        runs.setdefault(tuple(sorted(shapes.items())), run)
    return tuple(sorted(runs.values(), key=lambda run: sum(array.nbytes for array in run.values())))


def _nbytes(spec: TensorSpec, shape: Sequence[int]) -> int:
    return math.prod(shape) * np.dtype(spec.dtype).itemsize


class ServedModel(Leased):
    """A verified model version and its predictors.

    **Invariant**: its files and configuration never change. A reload builds another ServedModel,
    which replaces this one in the registry. Earlier requests still use this one by their leases. It
    is closed when the last lease ends or the time for draining is over.

    Belongs to the event loop; checked(), groups(), statistics() and open_shadow() may be called in
    any thread.
    """

    def __init__(
        self,
        files: ModelFiles,
        *,
        context: EngineContext,
        choice: Choice | None = None,
        before: ServedModel | None = None,
        on_failure: Callable[[ServedModel], None] = lambda _model: None,
    ) -> None:
        """Prepare the version without starting a process. Raises ManifestError and ConfigError.

        `choice` overrides the default group of config.toml. `before` is the same version as served
        so far; its statistics and measured effects are carried over. `on_failure` is called with
        this model if an instance of the default group rejects the model.
        """
        super().__init__()
        self.files = files
        self.choice: Choice = choice or first_choice(files.config)
        files = replace(files, config=files.config.served_by(self.choice.group))
        manifest = files.manifest
        self.name = files.name
        self.version = files.version
        self.info: ports.ServedModelInfo = files.info()
        self.config = files.config
        self.manifest = manifest
        self.inputs: tuple[TensorSpec, ...] = manifest.inputs
        self.outputs: tuple[TensorSpec, ...] = files.outputs
        self.pipeline: ports.Pipeline | None = None
        self._clock = context.clock
        self.batched: bool = files.batched
        self.max_rows: int = files.max_rows
        self.selftest: SelfTest = files.selftest(context.agreement_of(self.info))
        self._equal_axes = EqualAxes(files.config.equal_axes, manifest.inputs)
        self._ragged = RaggedAxes(files.config, manifest.inputs)
        self._valid: dict[Shapes, tuple[int, ShapeKey]] = {}
        self.warmups: tuple[Tensors, ...] = warmup_inputs(files.config, manifest.inputs)
        self.too_small: str = "" if self.warmups else too_small(self.selftest, manifest.inputs)
        self._statistics: Statistics = Statistics() if before is None else before._statistics
        default = files.config.default_group
        self._groups = {
            group.name: Group(
                config=group,
                files=files,
                selftest=self.selftest.judging(group),
                warmups=self.warmups,
                statistics=self._statistics,
                context=context,
                on_failure=partial(on_failure, self) if group.name == default else None,
            )
            for group in files.config.instance_group
        }
        for status in () if before is None else before.groups():
            self.record_effect(status.name, status.effect)

    async def start(self, *, low_priority: bool = False, default: bool = False) -> None:
        """Open the groups that always run; returns when each instance is tested and warm.

        With `default`, also opens a default group that starts on demand. A group whose program or
        GPU is missing is skipped; if it is the default group, BackendError is raised. Use
        `low_priority` while requests are served; opening then takes longer. Raises ConfigError or
        BackendError as soon as an instance rejects the model, BackendError if its processes keep
        crashing, and WorkerCrashed if the version is closed before a retry. The other instances may
        still be opening then.
        """
        groups = [
            group
            for name, group in self._groups.items()
            if (group.config.start == "always" and group.can_open)
            or (name == self.config.default_group and (default or not group.can_open))
        ]
        opened = [future for group in groups for future in group.start(low_priority=low_priority)]
        if opened:
            done, _ = await asyncio.wait(opened, return_when=asyncio.FIRST_EXCEPTION)
            for future in done:
                future.result()

    def submit(
        self, inputs: Tensors, *, deadline: float, group: str | None = None, priority: int = 0
    ) -> asyncio.Future[InferResult]:
        """Check and queue one job of up to `max_rows` rows.

        Raises InvalidTensor and the errors of submit_all().
        """
        [job] = self.checked([inputs])
        if job.rows > self.max_rows:
            raise InvalidTensor(f"{job.rows} rows in one job, limit {self.max_rows}")
        [future] = self.submit_all([job], deadline=deadline, group=group, priority=priority)
        return future

    def checked(self, jobs: Sequence[Tensors]) -> list[CheckedJob]:
        """Check jobs for submit_all(), and pad ragged axes. Raises InvalidTensor.

        May be called in any thread.
        """
        return [self._checked(inputs) for inputs in jobs]

    def nbytes(self, jobs: Sequence[Tensors]) -> int:
        """Return the total bytes that jobs have after padding; they need not be checked."""
        return sum([self._ragged.nbytes(inputs) for inputs in jobs])

    def portion(self, group: str) -> int:
        """Maximum jobs of one request that wait or run in a group. Raises InvalidParameter."""
        return self._group(group).portion

    def submit_all(
        self,
        jobs: Sequence[CheckedJob],
        *,
        deadline: float,
        group: str | None = None,
        priority: int = 0,
        reservation: Reservation | None = None,
        following: bool = False,
        large: bool = False,
    ) -> list[asyncio.Future[InferResult]]:
        """Queue all of the jobs, or none; return a future for the result of each.

        A job has at most `max_rows` rows; CheckedJob.parts() divides larger ones. `group` None
        means the default group. A group that is not started is started. The first job takes the
        place of the `reservation`, which then ends. `deadline` is a value of the engine's clock.
        `priority` 0 is normal and a larger one is less urgent: such a job waits until no job of
        higher priority waits, and is the first to be dropped. With `following`, the jobs replace
        ended jobs of their request, so the only check is that the deadline has not passed. `large`
        jobs, of requests with more than portion() jobs, share batches only with each other; these
        batches are smaller while other jobs arrive.

        Raises InvalidParameter (group), Overloaded, DeadlineExceeded and ModelNotReady. A future
        may raise DeadlineExceeded, WorkerCrashed, BackendError, ModelOutputInvalid, ModelNotReady
        (the version was closed, or the group cannot start) or Overloaded (the job was dropped).
        Cancelling a future removes its job from the queue; a job that runs continues to run.
        """
        chosen, now = self._group(group), self._clock()
        queued = [
            Job(
                inputs=inputs,
                rows=rows,
                key=key,
                priority=priority,
                deadline=deadline,
                enqueued=now,
                large=large,
            )
            for inputs, rows, key in jobs
        ]
        try:
            chosen.submit(*queued, reservation=reservation, following=following)
        except PaddlepoolError:
            for _ in queued:
                self._statistics.failure.add(0.0)
            raise
        return [job.future for job in queued]

    def reserve(self, *, deadline: float, group: str | None = None) -> Reservation:
        """Hold a place in a group's queue, for submit_all(), while a request is prepared.

        A default group that starts on demand is started. Raises InvalidParameter (group),
        Overloaded and ModelNotReady.
        """
        chosen = self._group(group)
        try:
            return chosen.reserve(deadline=deadline)
        except PaddlepoolError:
            self._statistics.failure.add(0.0)
            raise

    def load_of(self, group: str) -> tuple[int, int, float]:
        """Return a group's maximum of jobs, its number of processes, and the seconds of its jobs.

        The last are the estimated seconds until all jobs that wait or run now have ended. A default
        group that starts on demand is started. Raises InvalidParameter (group), ModelNotReady, and
        Overloaded if the group may not start now.
        """
        chosen = self._group(group)
        return chosen.places, chosen.config.count, chosen.seconds_before()

    def statistics(self) -> Statistics:
        """Return the counters since the version was loaded; ModelRegistry.adopt() keeps them."""
        return self._statistics.snapshot()

    def open_shadow(self, group: str, open_predictor: ports.PredictorFactory) -> Predictor:
        """Open and test a predictor with a group's configuration; the caller runs and closes it.

        It gets no jobs of the group. Blocks. Raises InvalidParameter (group), ConfigError,
        BackendError, WorkerCrashed, DeadlineExceeded and OSError.
        """
        return self._group(group).open_shadow(open_predictor)

    def record_effect(self, group: str, effect: Effect) -> None:
        """Store a group's measured effect, which groups() then reports. Raises InvalidParameter."""
        self._group(group).effect = effect

    def record_choice(self, choice: Choice) -> None:
        """Store why the default group was chosen. Raises ValueError if `choice` names another."""
        if choice.group != self.config.default_group:
            raise ValueError(f"{self.config.default_group} serves, not {choice.group}: a bug")
        self.choice = choice

    def groups(self) -> tuple[GroupStatus, ...]:
        return tuple(group.status() for group in self._groups.values())

    def ready(self) -> bool:
        """Whether the default group is ready, or can be started on demand."""
        return self._groups[self.config.default_group].accepts_jobs()

    @property
    def version_set(self) -> VersionSet:
        return VersionSet(self.version)

    def sha256(self) -> str:
        """Return a fingerprint of its files."""
        return self.manifest.sha256()

    @property
    def faults(self) -> int:
        """Number of processes that were lost by a crash, a timeout or a malformed reply."""
        return sum(group.faults for group in self._groups.values())

    @property
    def running(self) -> bool:
        """Whether the default group is started: see GroupStatus."""
        return self._groups[self.config.default_group].status().started

    async def close(self) -> None:
        """End every predictor and the pipeline, without draining. Queued jobs fail."""
        await asyncio.gather(*(group.close() for group in self._groups.values()))
        if self.pipeline is not None:
            self.pipeline.close()

    def _group(self, name: str | None) -> Group:
        """Return a group; None stands for the default group. Raises InvalidParameter."""
        group = self._groups.get(self.config.default_group if name is None else name)
        if group is None:
            names = ", ".join(self._groups)
            raise InvalidParameter(
                f"the model has no such instance group, it has {names}", limit=names
            )
        return group

    def _checked(self, inputs: Tensors) -> CheckedJob:
        shapes = tuple((name, array.dtype, array.shape) for name, array in inputs.items())
        rows_and_key = self._valid.get(shapes)
        rows = self._checked_rows(inputs) if rows_and_key is None else rows_and_key[0]
        for name, array in inputs.items():
            if array.dtype.kind == "f" and not bool(np.isfinite(array).all()):
                raise InvalidTensor(f"input {name!r} contains NaN or infinity")
        padded = self._ragged.pad(inputs)
        if rows_and_key is None:
            if len(self._valid) >= REMEMBERED_SHAPES:
                self._valid.clear()
            rows_and_key = self._valid[shapes] = rows, shape_key(padded)
        return CheckedJob(padded, *rows_and_key)

    def _checked_rows(self, inputs: Tensors) -> int:
        """Check names, dtypes and shapes; return the number of rows. Raises InvalidTensor.

        If the model is not batched, a job counts as one row.
        """
        expected = {spec.name for spec in self.inputs}
        if set(inputs) != expected:
            missing = ", ".join(sorted(expected - set(inputs))) or "none"
            raise InvalidTensor(
                f"the model takes the inputs {', '.join(sorted(expected))}; received {len(inputs)} "
                f"of which {len(expected & set(inputs))} fit, missing {missing}"
            )
        for spec in self.inputs:
            array = inputs[spec.name]
            if not spec.admits(array) or array.size == 0:
                raise InvalidTensor(
                    f"input {spec.name!r} must be {spec.dtype} of shape {list(spec.shape)} "
                    f"(-1 is free), received {array.dtype.name} of shape {list(array.shape)}"
                )
        self._equal_axes.check(inputs)
        if not self.batched:
            return 1
        sizes = {name: array.shape[0] for name, array in inputs.items()}
        rows = int(next(iter(sizes.values())))
        if len(set(sizes.values())) != 1:
            raise InvalidTensor(f"inputs differ in their first axis: {sizes}")
        if rows > (limit := self.max_rows * MAX_PARTS):
            raise InvalidTensor(
                f"{rows} rows in one request, limit {limit}: {MAX_PARTS} runs of max_batch_size "
                f"{self.max_rows}",
                limit=limit,
                received=rows,
            )
        return rows
