"""The engine's interfaces (predictors, pipelines, observers) and the values they exchange."""

import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from paddlepool.contracts.reasons import Rejection, Restart
from paddlepool.contracts.resources import has_gpu
from paddlepool.contracts.tensors import Tensors, TensorSpec

Request = TypeVar("Request", contravariant=True)
Result = TypeVar("Result", covariant=True)

Clock = Callable[[], float]
"""Monotonic seconds. All deadlines in the engine are absolute values of this clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictorSpec:
    """All that a backend needs to open one predictor; sent to the child process as JSON.

    `program` and `params` are names of files in `directory`; `params` is None for a program without
    parameters. `program_name` is the name of a derived program, such as "int8", that the instance
    group selects; None if it selects none. `format` is "paddle" or "onnx", or None if the version
    has no program of that name; no predictor can be opened then. `options` are those of the
    instance group. `network` has the name and options of the network class that the backend
    paddle_dygraph builds; None if the manifest names none. `batched` means that each output has one
    row for each row of the inputs.
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
        """Why this predictor cannot be opened, if that is known without trying; else ""."""
        if not self.format:
            return f"this version has no program {self.program_name!r}"
        if self.options.get("device") == "gpu" and not has_gpu():
            return 'device = "gpu": this machine has no CUDA device'
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModelInfo:
    """The facts about a model version that its pipeline may use.

    `directory` is the verified version directory (with tokenizer.json, for example). `pipeline` is
    the name of the task, or None; it and `parameters` come from config.toml. A job of more than
    `max_rows` rows is divided. `parts` are the models of a composed model, by the names of the
    parts; a composed model has no inputs and outputs itself.
    """

    name: str
    version: int
    directory: Path
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_rows: int = 1
    parameters: Mapping[str, Any] = field(default_factory=dict)
    pipeline: str | None = None
    parts: Mapping[str, "ServedModelInfo"] = field(default_factory=dict)


Agreement = Callable[[Tensors, Tensors], float]
"""Returns how closely two sets of outputs agree for a task's users: from 0 to 1, which is equal."""

AgreementOf = Callable[[ServedModelInfo], Agreement | None]
"""Returns the Agreement of a model's task; None if the model has no task or the task no measure."""

Slices = Callable[[Tensors], Sequence[str]]
"""Returns one name for each row of a model's outputs: the kind of its answer, such as its label."""

SlicesOf = Callable[[ServedModelInfo], Slices | None]
"""Returns the Slices of a model's task; None if the model has no task or its answers no kinds."""


class RunResult(NamedTuple):
    """A run's outputs, owned by the caller, and its seconds in the predictor's process.

    `finite` is true if the outputs were checked and contain no NaN and no infinity. It is false if
    they contain some, or were not checked.
    """

    outputs: Tensors
    seconds: float
    finite: bool = False


class Interrupted(Exception):
    """The system or another program ended the process during a request, which may be run again."""


class Worker(Protocol[Request, Result]):
    """A process that handles one request after another; owned by the event loop.

    Requests end in the order in which they were sent. A request is under way from send() until
    fetch(), or until a method raises its error. put() and fetch() may be called in a thread;
    meanwhile no other method is called, except abort() and resident_bytes().
    """

    def fileno(self) -> int:
        """Return a descriptor that is readable when poll_reply() should be called."""

    def put(self, request: Request, /) -> None:
        """Copy a request into the shared memory. At most one other request may be under way.

        Raises ValueError if the request is too large, and OSError if the memory cannot grow.
        """

    def send(self, request: Request, /) -> None:
        """Send the request that was put; it runs when the one under way has ended.

        Raises WorkerCrashed if the process has died, and another PaddlepoolError if the request
        need not run any more. The request then never began.
        """

    def expect(self, *, timeout: float) -> None:
        """Set the timeout of the oldest request under way, in seconds from now."""

    def check_timeout(self) -> float:
        """Check on the oldest request and return the seconds until the next check is due.

        If the request took too long or the process was stopped, kills the process and raises the
        request's error.
        """

    def poll_reply(self) -> int | None:
        """Return the bytes of the oldest request and its reply together; None before the reply.

        Raises the request's error, or Interrupted if the request may be run again. If failure()
        then returns a reason, the process is gone, and later requests never began.
        """

    def fetch(self) -> Result:
        """Return the reply that poll_reply() found, copied out of the shared memory."""

    def failure(self) -> Restart | None:
        """Return why the process can do no further work, or None. Cheap to call."""

    def resident_bytes(self) -> int: ...

    def abort(self) -> None:
        """Kill the process without waiting for its end; poll_reply() then raises an error."""

    def close(self) -> None:
        """Kill the process and wait until it has ended."""


class Predictor(Worker[Tensors, RunResult], Protocol):
    """One loaded model that runs one batch at a time; outputs are owned by the caller.

    check_timeout() raises DeadlineExceeded after the timeout, and WorkerCrashed if the process was
    stopped; the predictor is then dead. poll_reply() raises WorkerCrashed if the process died or
    was killed for an invalid reply, RunRefused if the framework rejected the batch, and
    ModelOutputInvalid if an output has a number of rows or a shape that the specification excludes.
    """

    def run(self, inputs: Tensors, *, timeout: float) -> Tensors:
        """Run one batch, blocking, and return its outputs unchecked; for self-tests and warm-ups.

        Raises the errors of put(), send(), check_timeout() and poll_reply(), but no
        ModelOutputInvalid.
        """

    def receive(self, *, timeout: float) -> RunResult:
        """Wait for the oldest request's result, blocking.

        Raises the errors of check_timeout() and poll_reply().
        """

    def end_suspension(self) -> None:
        """Let the process run freely from now on; does nothing if it was opened without suspension.

        See PredictorFactory.
        """


class PredictorFactory(Protocol):
    """Opens a predictor in a child process.

    Raises ConfigError and BackendError if the model or its options are rejected, WorkerCrashed if
    the process died, and OSError if the system lacked resources for it. `suspension` is a
    `paddlepool.engine.process.suspension.Suspension`. While it is held, the process runs at most in
    short turns, until Predictor.end_suspension() is called.
    """

    def __call__(self, spec: PredictorSpec, *, suspension: Any = None) -> Predictor: ...


@dataclass(slots=True, kw_only=True)
class InferResult:
    """The result of one job. Not frozen: creating a frozen one takes a microsecond longer.

    The job was queued at `enqueued` on the engine's clock. It waited `start_up_seconds` for its
    group to start and `queue_seconds` in the queue, then ran for `infer_seconds` in the predictor's
    process. Its batch had `batch_rows` rows. `instance` is the number of the instance in its group,
    from 0.
    """

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


@dataclass(slots=True, kw_only=True)
class RequestOutput:
    """A request's result, and the version and instance group that computed it.

    `value` is what the task's pipeline returned, or the outputs of a tensor request. For a composed
    model, `group` has the form "part:group,part:group". `stages` are seconds by the name of the
    stage: those of STAGES in their order, then others.
    """

    value: Any
    model: str
    version: int
    group: str
    stages: Mapping[str, float]


class EngineObserver(Protocol):
    """Receives the engine's events; its methods must not block or raise."""

    def batch_done(
        self, *, model: str, version: int, group: str, rows: int, seconds: float
    ) -> None: ...

    def restarted(self, *, model: str, group: str, reason: Restart) -> None: ...

    def rejected(self, *, model: str, reason: Rejection) -> None: ...

    def retired(self, *, model: str, served: Collection[int]) -> None:
        """A version was closed; `served` are the versions of the model that are served now."""


WHOLE = ""
"""Name of the only part of a model that is not composed."""


@dataclass(slots=True, eq=False, kw_only=True)
class RequestContext(ABC):
    """What a pipeline sees of the engine while it answers one request.

    `deadline` is a value of the engine's clock. `stages` are the seconds of each stage so far, by
    name.
    """

    deadline: float
    stages: dict[str, float] = field(default_factory=dict, init=False)

    @abstractmethod
    async def infer(self, jobs: Sequence[Tensors], *, part: str = WHOLE) -> list[Tensors]:
        """Run jobs on the model and return the outputs of each, in order; all numbers are finite.

        `part` names the part of a composed model. Raises InvalidTensor, Overloaded,
        DeadlineExceeded, ModelNotReady, WorkerCrashed, BackendError and ModelOutputInvalid. After
        the first call has returned, a full or slow queue rejects no later call of this request.
        Several calls may be awaited at the same time; the stages get the sum of their seconds.
        """

    def stage(self, name: str) -> AbstractContextManager[None]:
        """Add the seconds of the block to a stage: `with context.stage("decode"):`.

        A block that raises is not counted.
        """
        return _Stopwatch(self, name)

    def add_seconds(self, seconds: Mapping[str, float]) -> None:
        """Add seconds to stages, by name; for example those measured in a codec process."""
        for name, value in seconds.items():
            self.stages[name] = self.stages.get(name, 0.0) + value


class _Stopwatch:
    """The block of RequestContext.stage(). A generator as context manager would take longer."""

    __slots__ = ("_began", "_context", "_name")

    def __init__(self, context: RequestContext, name: str) -> None:
        self._context = context
        self._name = name

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._context.add_seconds({self._name: time.perf_counter() - self._began})


class Pipeline(Protocol):
    """One task on one model version."""

    async def run(self, payload: Any, context: RequestContext) -> Any:
        """Answer one request: decode, run jobs with `context.infer`, encode.

        Runs on the event loop: work above a millisecond belongs in a thread or a codec process. May
        be cancelled at any await. Hold resources with `with`, and give work that may continue in
        the background its own copy of the data that it reads.
        """

    def close(self) -> None: ...


@runtime_checkable
class ComposedPipeline(Pipeline, Protocol):
    """A pipeline of several models; a whole sample request tests it before its first answer.

    A payload may be run again, on another version: run() must not change it.
    """

    def payload_of(self, sample: bytes) -> Any:
        """Return the payload for run() from the content of the sample request's file."""

    def answer_of(self, value: Any) -> Any:
        """Convert a value that run() returned to JSON values, the form of a stored answer."""

    def check(self, answer: Any, expected: Any) -> None:
        """Raise BackendError if `answer` differs too much from the expected one.

        Both are results of answer_of(), and the error quotes from both. The task decides how much
        they may differ.
        """


BuildPipeline = Callable[[ServedModelInfo], Awaitable[Pipeline | None]]
"""Returns the pipeline of a model's task, or None if the model has no task.

Raises ConfigError, ModelNotFound and OSError, and BackendError if the codec processes do not start.
"""
