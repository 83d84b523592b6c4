"""Ports of the engine: predictors, pipelines and observers, and their values."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from app.contracts.reasons import Rejection, Restart
from app.contracts.tensors import Tensors, TensorSpec

Request = TypeVar("Request", contravariant=True)
Answer = TypeVar("Answer", covariant=True)

Clock = Callable[[], float]
"""Monotonic seconds. Deadlines everywhere in the engine are absolute values of this clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictorSpec:
    """All a backend needs to open one predictor; crosses the process boundary as JSON.

    `program_name` is None for the reference program. `format` is "paddle" or "onnx", and None where
    the version has no program of that name: nothing can be opened then. Where it is `batched`,
    each output has a row for each row of the inputs.
    """

    directory: Path
    program: str
    params: str | None
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    backend: str
    threads: int
    options: Mapping[str, Any] = field(default_factory=dict)
    network: Mapping[str, Any] | None = None
    program_name: str | None = None
    format: str | None = "paddle"
    batched: bool = False

    @property
    def refusal(self) -> str:
        """Why no backend can open it, or an empty string."""
        return "" if self.format else f"this version has no program {self.program_name!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModelInfo:
    """What a pipeline may know of the model version it is built for.

    `directory` is the verified version directory (tokenizer.json and the like); `pipeline` and
    `parameters` are those of config.toml. A job may have up to `max_rows` rows.
    """

    name: str
    version: int
    directory: Path
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_rows: int = 1
    parameters: Mapping[str, Any] = field(default_factory=dict)
    pipeline: str | None = None


Agreement = Callable[[Tensors, Tensors], float]
"""How far two sets of outputs mean the same to a task's users: from 0 to 1."""

AgreementOf = Callable[[ServedModelInfo], Agreement | None]
"""The measure of a model's task; None for a model without a task or a task without one."""


class Ran(NamedTuple):
    """A run's outputs, owned by the caller, and the seconds it took in the predictor's process.

    `finite` says that they are known to hold no NaN and no infinity.
    """

    outputs: Tensors
    seconds: float
    finite: bool = False


class Interrupted(Exception):
    """Somebody else ended the process during a request, which is not to blame: run it again."""


class Worker(Protocol[Request, Answer]):
    """A process that works on one request after another; owned by the event loop.

    put() and fetch() may be called in a thread, and no other call is made meanwhile.
    """

    def fileno(self) -> int:
        """A descriptor that is readable when hear() has something to say."""

    def put(self, request: Request, /) -> None:
        """Copy a request into the memory shared with the process; at most one is under way."""

    def send(self, request: Request, /) -> None:
        """Send the request that was put; it runs when the one under way has ended.

        Raises WorkerCrashed when the process had died: the request never began.
        """

    def expect(self, *, timeout: float) -> None:
        """Give the oldest request under way so many seconds from now."""

    def look(self) -> float:
        """Check on the oldest request, and return the seconds until the next check is due.

        Raises as hear() does: where the request took too long, or the process was stopped.
        """

    def hear(self) -> int | None:
        """The bytes of the answer to the oldest request; None before it comes.

        When it raises and failure() gives a reason, the process is gone, and the request behind it
        never began. Raises Interrupted for one that may be run again.
        """

    def fetch(self) -> Answer:
        """The answer that was heard, copied out of the memory shared with the process."""

    def failure(self) -> Restart | None:
        """Why it can do no further work, or None. Cheap."""

    def resident_bytes(self) -> int: ...

    def abort(self) -> None:
        """End the process at once: a run in progress raises WorkerCrashed."""

    def close(self) -> None:
        """End the process and wait for its end."""


class Predictor(Worker[Tensors, Ran], Protocol):
    """One loaded model that runs one batch at a time; outputs are owned by the caller.

    look() and hear() raise DeadlineExceeded after the timeout (the predictor is then dead),
    WorkerCrashed when the process died or was ended because its outputs are not those that the
    model has, RunRefused when the framework refused the batch.
    """

    def run(self, inputs: Tensors, *, timeout: float) -> Tensors:
        """Send one batch and block until its outputs, whatever they are, for tests of the model."""

    def receive(self, *, timeout: float) -> Ran:
        """Block until the answer to the oldest request, which gets so many seconds."""

    def settle(self) -> None:
        """Leave the suspension that it was opened with; it serves from now on."""


class Suspended(Protocol):
    """What a child process must know of its suspension (app.engine.process.suspension)."""

    @property
    def held(self) -> bool: ...

    def add(self, process: subprocess.Popen[bytes]) -> None: ...

    def discard(self, process: subprocess.Popen[bytes]) -> None: ...

    def run_briefly(self, process: subprocess.Popen[bytes]) -> None: ...


class PredictorFactory(Protocol):
    """Opens a predictor in a child process. Raises ConfigError and BackendError when the model or
    its options are refused, WorkerCrashed and OSError when the process could not be started.

    With a `suspension` it stands still while that is held, from its start until it is settled.
    """

    def __call__(
        self, spec: PredictorSpec, *, suspension: Suspended | None = None
    ) -> Predictor: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class InferResult:
    """What one job gets back. `infer_seconds` is the run in the predictor's process; before it came
    `start_up_seconds`, in which its group was being started for it, and `queue_seconds`; it was
    queued at `enqueued` of the engine's clock. `batch_rows` is the batch it shared, `instance` the
    number in its group of the predictor that ran it."""

    outputs: Tensors
    model: str
    version: int
    group: str
    instance: int
    enqueued: float
    queue_seconds: float
    start_up_seconds: float = 0.0
    infer_seconds: float
    batch_rows: int


class EngineObserver(Protocol):
    """Hears what happens in the engine; must not block or raise."""

    def batch_done(
        self, *, model: str, version: int, group: str, rows: int, seconds: float
    ) -> None: ...

    def restarted(self, *, model: str, group: str, reason: Restart) -> None: ...

    def rejected(self, *, model: str, reason: Rejection) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A request after decode and preprocess: the engine jobs to run, and what finish() needs.

    `stages` are seconds by stage name. `release` frees what `state` holds. The data plane calls it
    exactly once: when finish() has returned or raised, or when the request ends before that.
    """

    jobs: tuple[Tensors, ...]
    state: Any
    stages: Mapping[str, float]
    release: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A request after postprocess and encode; `value` is the task's own result type."""

    value: Any
    stages: Mapping[str, float]


class Pipeline(Protocol):
    """One task on one model version: turns a payload into engine jobs and outputs into a reply.

    Both coroutines run on the event loop: work above a millisecond belongs in a thread or a codec
    process. `deadline` is absolute. Either may be cancelled at any
    await: work that it leaves behind must own what it reads.
    """

    async def prepare(self, payload: Any, *, deadline: float) -> Prepared:
        """What raises gives back what it holds: nobody else knows of it."""

    async def finish(
        self, prepared: Prepared, outputs: Sequence[Tensors], *, deadline: float
    ) -> Finished:
        """One entry of `outputs` for each job, all numbers finite."""

    def close(self) -> None: ...
