"""The engine's interfaces (predictors, pipelines, observers) and the values they exchange."""

import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
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

    `params` is None for a program without parameters. `program_name` is None for the reference
    program. `format` is "paddle" or "onnx", or None if the version has no program of that name; no
    predictor can be opened then. `network` describes the dynamic graph, if there is one. `batched`
    means that each output has one row for each row of the inputs.
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
        """The reason, known beforehand, why no backend can open this predictor; "" if none is."""
        if not self.format:
            return f"this version has no program {self.program_name!r}"
        if self.options.get("device") == "gpu" and not has_gpu():
            return 'device = "gpu": this machine has no CUDA device'
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModelInfo:
    """The facts about a model version that its pipeline may use.

    `directory` is the verified version directory (with tokenizer.json, for example); `pipeline`
    and `parameters` come from config.toml. A job of more than `max_rows` rows is divided. `parts`
    are the models of a composed model, which has no inputs and outputs itself.
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
"""Returns how closely two sets of outputs agree for a task's users: from 0 to 1."""

AgreementOf = Callable[[ServedModelInfo], Agreement | None]
"""Returns the Agreement of a model's task, or None without a task or a measure."""

Slices = Callable[[Tensors], Sequence[str]]
"""Returns the kind of each answer in a model's outputs, such as its label, one for each row."""

SlicesOf = Callable[[ServedModelInfo], Slices | None]
"""Returns the Slices of a model's task, or None without a task or kinds of answers."""


class RunResult(NamedTuple):
    """A run's outputs, owned by the caller, and its seconds in the predictor's process.

    `finite` means that the outputs are known to contain no NaN and no infinity; if false, they were
    not checked, or contain some.
    """

    outputs: Tensors
    seconds: float
    finite: bool = False


class Interrupted(Exception):
    """The process was ended from outside during a request; the request may be run again."""


class Worker(Protocol[Request, Result]):
    """A process that handles one request after another; owned by the event loop.

    put() and fetch() may be called in a thread; meanwhile no other method is called, except abort()
    and resident_bytes().
    """

    def fileno(self) -> int:
        """Return a descriptor that is readable when poll_reply() should be called."""

    def put(self, request: Request, /) -> None:
        """Copy a request into the shared memory. At most one other request may be under way.

        Raises ValueError if the request is too large.
        """

    def send(self, request: Request, /) -> None:
        """Send the request that was put; it runs when the one under way has ended.

        Raises WorkerCrashed if the process has died; the request then never began.
        """

    def expect(self, *, timeout: float) -> None:
        """Set the timeout of the oldest request under way, in seconds from now."""

    def check_timeout(self) -> float:
        """Check on the oldest request and return the seconds until the next check is due.

        Raises the errors of poll_reply() if the request took too long or the process was stopped.
        """

    def poll_reply(self) -> int | None:
        """Return the size in bytes of the oldest request and its reply; None before the reply.

        If this raises an error and failure() then returns a reason, the process is gone and the
        next request never began. Raises Interrupted if the request may be run again.
        """

    def fetch(self) -> Result:
        """Return the reply that poll_reply() read, copied out of the shared memory."""

    def failure(self) -> Restart | None:
        """Return why the process can do no further work, or None. Cheap to call."""

    def resident_bytes(self) -> int: ...

    def abort(self) -> None:
        """Kill the process; a run in progress raises WorkerCrashed."""

    def close(self) -> None:
        """Kill the process and wait until it has ended."""


class Predictor(Worker[Tensors, RunResult], Protocol):
    """One loaded model that runs one batch at a time; outputs are owned by the caller.

    check_timeout() and poll_reply() raise DeadlineExceeded after the timeout; the predictor is then
    dead. They raise WorkerCrashed if the process died, or was killed because its reply had outputs
    that no run of the model returns. They raise RunRefused if the framework rejected the batch, and
    ModelOutputInvalid if an output has a shape that the specification excludes.
    """

    def run(self, inputs: Tensors, *, timeout: float) -> Tensors:
        """Run one batch, blocking, and return its outputs unchecked; for self-tests and warm-ups.

        Raises the errors of poll_reply().
        """

    def receive(self, *, timeout: float) -> RunResult:
        """Wait up to `timeout` seconds for the oldest request's result; raises as poll_reply()."""

    def end_suspension(self) -> None:
        """Leave the suspension that was passed to the factory, and begin to serve."""


class PredictorFactory(Protocol):
    """Opens a predictor in a child process.

    Raises ConfigError and BackendError if the model or its options are rejected, WorkerCrashed and
    OSError if the process could not be started or died. With a `suspension`
    (paddlepool.engine.process.suspension), the process runs only in short turns while the
    suspension is held, until Predictor.end_suspension() is called.
    """

    def __call__(self, spec: PredictorSpec, *, suspension: Any = None) -> Predictor: ...


@dataclass(slots=True, kw_only=True)
class InferResult:
    """The result of one job. Not frozen: creating a frozen one takes a microsecond longer.

    The job was queued at `enqueued` on the engine's clock. It waited `start_up_seconds` for its
    group to start and `queue_seconds` in the queue, then ran for `infer_seconds` in the predictor's
    process. `batch_rows` is the size of its batch, `instance` the predictor's number in the group.
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
    """A request's result and its origin. `stages` are seconds by stage, those of STAGES first.

    The `group` of a composed model has the form "part:group,part:group".
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
"""The only part of a model that is not composed."""


@dataclass(slots=True, eq=False, kw_only=True)
class RequestContext(ABC):
    """What a pipeline sees of the engine while it answers one request.

    `deadline` is absolute. `stages` are the seconds of each stage so far, by name.
    """

    deadline: float
    stages: dict[str, float] = field(default_factory=dict, init=False)

    @abstractmethod
    async def infer(self, jobs: Sequence[Tensors], *, part: str = WHOLE) -> list[Tensors]:
        """Run jobs on the model and return the outputs of each, in order; all numbers are finite.

        `part` names the part of a composed model. Raises InvalidTensor, Overloaded,
        DeadlineExceeded, ModelNotReady, WorkerCrashed, BackendError and ModelOutputInvalid. Once a
        call has returned, later calls are not rejected because the queue is full.
        """

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure a stage that runs in this process: `with context.stage("decode"):`.

        A stage that raises is not counted.
        """
        begin = time.perf_counter()
        yield
        self.add_seconds({name: time.perf_counter() - begin})

    def add_seconds(self, seconds: Mapping[str, float]) -> None:
        """Add seconds by stage name, such as those measured in a codec process."""
        for name, value in seconds.items():
            self.stages[name] = self.stages.get(name, 0.0) + value


class Pipeline(Protocol):
    """One task on one model version."""

    async def run(self, payload: Any, context: RequestContext) -> Any:
        """Answer one request: decode, run jobs with `context.infer`, encode.

        Runs on the event loop: work above a millisecond belongs in a thread or a codec process. May
        be cancelled at any await: hold resources with `with`, and let work that continues in the
        background own the data it reads.
        """

    def close(self) -> None: ...


@runtime_checkable
class ComposedPipeline(Pipeline, Protocol):
    """A pipeline of several models, tested by one whole request before it serves."""

    def payload_of(self, sample: bytes) -> Any:
        """Return the payload for run() from the content of the sample request's file."""

    def answer_of(self, value: Any) -> Any:
        """Convert the value that run() returned to JSON values, the form of a stored answer."""

    def check(self, answer: Any, expected: Any) -> None:
        """Raise BackendError, which quotes both, if `answer` differs from the expected one."""


BuildPipeline = Callable[[ServedModelInfo], Awaitable[Pipeline | None]]
"""Returns the pipeline of a model's task, or None without a task. Raises ConfigError."""
