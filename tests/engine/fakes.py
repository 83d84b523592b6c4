"""Predictors, clocks and observers that tests steer: gates instead of sleeps."""

import asyncio
import contextlib
import gc
import itertools
import math
import select
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from paddlepool.contracts.caller import CALLER, Caller, Quota
from paddlepool.contracts.errors import DeadlineExceeded, WorkerCrashed
from paddlepool.contracts.ports import (
    InferResult,
    PredictorFactory,
    PredictorSpec,
    RequestOutput,
    RunResult,
    ServedModelInfo,
)
from paddlepool.contracts.reasons import Rejection, Restart
from paddlepool.contracts.tensors import Tensors
from paddlepool.engine.pool.context import EngineContext, Yielding
from paddlepool.engine.process.suspension import Suspension
from paddlepool.engine.registry.model import ServedModel
from paddlepool.engine.registry.registry import ModelRegistry
from paddlepool.models.repository.layout import ModelRepository
from tests.model_files import write_config, write_version
from tests.ran import eventually as eventually
from tests.ran import wait_until as wait_until

PATIENCE = 60.0
"""Seconds after which a test that waits for an event fails."""

Behaviour = Callable[[Tensors], Tensors]


def doubled(inputs: Tensors) -> Tensors:
    with np.errstate(over="ignore"):  # as engines do
        return {"y": 2 * inputs["x"]}  # type: ignore[operator]


def row(*values: float) -> Tensors:
    """One job of one row."""
    return {"x": np.array([values], np.float32)}


@contextlib.contextmanager
def calling(name: str, quota: Quota | None = None) -> Iterator[None]:
    """Requests inside come from that caller."""
    before = CALLER.set(Caller(name=name, quota=quota))
    try:
        yield
    finally:
        CALLER.reset(before)


def soon() -> float:
    """A deadline that nobody misses."""
    return time.monotonic() + PATIENCE


async def infer(
    registry: ModelRegistry, *, version: int | None = None, group: str | None = None
) -> InferResult:
    """The result of one request to `double`."""
    with registry.lease("double", version) as model:
        result = await model.submit(row(1), deadline=soon(), group=group)
    assert result.outputs["y"].tolist() == [[2]]  # type: ignore[union-attr]
    return result


@contextlib.contextmanager
def no_collections() -> Iterator[None]:
    """What ends inside must leave the memory by itself."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def failing(make: Callable[[], Exception], *, times: float = math.inf) -> Behaviour:
    """The first `times` runs raise `make()`, and later ones double their input."""
    runs = itertools.count()

    def behaviour(inputs: Tensors) -> Tensors:
        if next(runs) < times:
            raise make()
        return doubled(inputs)

    return behaviour


def infer_result(**fields: Any) -> InferResult:
    """The result of a job of one row."""
    default: dict[str, Any] = dict.fromkeys(("enqueued", "queue_seconds", "infer_seconds"), 0.0)
    default |= {"model": "m", "version": 1, "group": "g", "instance": 0}
    return InferResult(**default | {"outputs": {}, "batch_rows": 1} | fields)


def request_output(stages: Mapping[str, float], **fields: Any) -> RequestOutput:
    """The output of a request with these stages."""
    default = {"value": None, "model": "m", "version": 1, "group": "g"}
    return RequestOutput(**default | {"stages": stages} | fields)


class ManualClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class Sleeper:
    """A thread that only waits until `deadline`: how late it wakes is the machine's doing."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._woke: Future[float] = Future()
        threading.Thread(target=self._sleep, daemon=True).start()

    def late(self) -> float:
        """Seconds."""
        return self._woke.result(timeout=PATIENCE) - self._deadline

    def _sleep(self) -> None:
        threading.Event().wait(max(0.0, self._deadline - time.monotonic()))
        self._woke.set_result(time.monotonic())


class Crash(WorkerCrashed):
    """Raised by a behaviour whose process is gone afterwards."""

    kills = Restart.CRASHED


class Gate:
    """A behaviour that stops in each run until it is opened; `entered` counts the runs begun."""

    def __init__(self, behaviour: Behaviour = doubled) -> None:
        self._behaviour = behaviour
        self._begun = threading.Semaphore(0)
        self._passes = threading.Semaphore(0)
        self._open = threading.Event()
        self.seen: list[Tensors] = []

    def __call__(self, inputs: Tensors) -> Tensors:
        self.seen.append(inputs)
        self._begun.release()
        if not self._open.is_set():
            assert self._passes.acquire(timeout=PATIENCE), "the gate was never opened"
        return self._behaviour(inputs)

    async def entered(self) -> None:
        """Wait until a run has begun."""
        await asyncio.to_thread(self.wait_entered)

    def wait_entered(self) -> None:
        assert self._begun.acquire(timeout=PATIENCE), "no run began"

    def let_one_pass(self) -> None:
        self._passes.release()

    def open(self) -> None:
        self._open.set()
        self._passes.release(64)


class FakePredictor:
    """Runs `behaviour` once its self-test is over (the first run after opening).

    What is sent runs in a thread, one after the other, and is received when it has ended.
    """

    def __init__(self, factory: "FakeFactory") -> None:
        self._factory = factory
        self._tested = False
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self.dead: Restart | None = None
        self.hung = False
        self.resident = 1 << 20
        self.suspension: Suspension | None = None
        self.closed = threading.Event()
        self.aborted = threading.Event()
        self.timeouts: list[float] = []
        self._under_way = 0
        self._running = threading.Lock()
        self._put: Tensors = {}
        self._sent: deque[Tensors] = deque()
        self._ended: deque[RunResult | Exception] = deque()
        self._received: RunResult | None = None

    def run(self, inputs: Tensors, *, timeout: float) -> Tensors:
        if self._tested:
            self.expect(timeout=timeout)
        return self.work(inputs)

    def work(self, inputs: Tensors) -> Tensors:
        assert self.dead is None, "a dead predictor was run"
        assert not self.closed.is_set(), "a closed predictor was run"
        if not self._tested:
            self._tested = True
            return self._factory.selftest(inputs)
        try:
            return self._factory.behaviour(inputs)
        except Exception as error:
            self.dead = getattr(error, "kills", None)
            raise

    def fileno(self) -> int:
        return self._reader.fileno()

    def put(self, inputs: Tensors) -> None:
        self._put = inputs

    def send(self, _: Tensors) -> None:
        inputs, self._put = self._put, {}
        assert self._under_way < 2, "a third batch was sent"
        if self.dead is not None:
            raise WorkerCrashed("it had ended")
        self._under_way += 1
        self._sent.append(inputs)
        threading.Thread(target=self._run_next, daemon=True).start()

    def waiting(self) -> int:
        """How many requests were sent and have not begun."""
        return len(self._sent)

    def _run_next(self) -> None:
        with self._running:
            inputs = self._sent.popleft()
            if self.dead is not None:
                return
            began = time.perf_counter()
            try:
                outputs = self.work(inputs)
                seconds = self._factory.seconds
                took = time.perf_counter() - began if seconds is None else seconds
                self._ended.append(RunResult(outputs, took))
            except Exception as error:
                self._ended.append(error)
        self._wake()
        if self.closed.is_set():
            self._ended.clear()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # closed meanwhile
            self._writer.send(b"!")

    def expect(self, *, timeout: float) -> None:
        self.timeouts.append(timeout)

    def receive(self, *, timeout: float) -> RunResult:
        self.expect(timeout=timeout)
        assert select.select([self._reader], [], [], PATIENCE)[0], "its run never ended"
        self.poll_reply()
        return self.fetch()

    def check_timeout(self) -> float:
        if self.hung:
            self.dead = Restart.TIMEOUT
            raise DeadlineExceeded("it was ended")
        return 0.05

    def poll_reply(self) -> int | None:
        self._reader.recv(1)
        if self.dead is not None and not self._ended:
            raise WorkerCrashed("it was ended")
        ended = self._ended.popleft()
        self._under_way -= 1
        if isinstance(ended, Exception):
            try:
                raise ended
            finally:
                del ended  # this frame is in its traceback: each would keep the other
        self._received = ended
        return sum(array.nbytes for array in ended.outputs.values())

    def fetch(self) -> RunResult:
        received, self._received = self._received, None
        assert received is not None
        return received

    def failure(self) -> Restart | None:
        return self.dead

    def end_suspension(self) -> None:
        self.suspension = None

    def resident_bytes(self) -> int:
        return self.resident

    def abort(self) -> None:
        self.dead = Restart.KILLED
        self.aborted.set()
        self._wake()

    def die(self, reason: Restart = Restart.KILLED) -> None:
        """End by itself, as a process that somebody kills."""
        self.dead = reason
        self._wake()

    def close(self) -> None:
        self.closed.set()
        self._reader.close()
        self._writer.close()
        self._ended.clear()

    __del__ = close  # a test may leave it open


@dataclass
class FakeFactory:
    """Opens FakePredictors and remembers them; `refuse` is raised instead when it is set.

    A run says that it took `seconds`, or as long as it did.
    """

    behaviour: Behaviour = doubled
    selftest: Behaviour = doubled
    refuse: Exception | None = None
    seconds: float | None = None
    opened: list[FakePredictor] = field(default_factory=list)
    specs: list[PredictorSpec] = field(default_factory=list)
    pauses: list[Suspension | None] = field(default_factory=list)

    def __call__(
        self, spec: PredictorSpec, *, suspension: Suspension | None = None
    ) -> FakePredictor:
        self.specs.append(spec)
        self.pauses.append(suspension)
        if self.refuse is not None:
            raise self.refuse
        predictor = FakePredictor(self)
        predictor.suspension = suspension
        self.opened.append(predictor)
        return predictor

    def open_gate(self) -> None:
        """Open the gate that its runs wait at, if they do: at the end of a test."""
        if isinstance(self.behaviour, Gate):
            self.behaviour.open()


class RecordingObserver:
    def __init__(self) -> None:
        self.batches: list[dict[str, Any]] = []
        self.restarts: list[str] = []
        self.rejections: Counter[str] = Counter()
        self.retirements: list[tuple[str, list[int]]] = []

    def batch_done(self, **batch: Any) -> None:
        self.batches.append(batch)

    def restarted(self, *, model: str, group: str, reason: Restart) -> None:
        self.restarts.append(reason)

    def rejected(self, *, model: str, reason: Rejection) -> None:
        self.rejections[reason] += 1

    def retired(self, *, model: str, served: Collection[int]) -> None:
        self.retirements.append((model, list(served)))


DOUBLE = """
default_group = "main"
[dynamic_batching]
max_batch_size = {batch}
max_queue_delay_ms = {delay}
max_queue_size = {queue}
[[instance_group]]
name = "main"
backend = "fake"
count = {count}
start = "{start}"
[[instance_group]]
name = "spare"
backend = "fake"
start = "on_demand"
"""


def write_double(
    root: Path,
    *versions: int,
    name: str = "double",
    batch: int = 4,
    delay: float = 0,
    queue: int = 16,
    count: int = 1,
    start: str = "always",
) -> Path:
    """A model (y = 2 x) with groups `main` and `spare`; returns its directory."""
    config = DOUBLE.format(batch=batch, delay=delay, queue=queue, count=count, start=start)
    write_config(root / name, config)
    for version in versions or (1,):
        write_version(root / name / str(version))
    return root / name


def served_double(
    root: Path,
    factory: FakeFactory,
    observer: RecordingObserver,
    *,
    version: int = 1,
    **options: Any,
) -> ServedModel:
    """What write_double() has written, not started; `options` are an EngineContext's."""
    options.setdefault("max_resident_bytes", 1 << 30)
    context = EngineContext(open_predictor=factory, observer=observer, **options)
    return ServedModel(ModelRepository(root).read("double", version), context=context)


def open_registry(root: Path, factory: PredictorFactory, **options: Any) -> ModelRegistry:
    """A ModelRegistry; `options` are its own, or an EngineContext's."""

    async def no_pipeline(_: ServedModelInfo) -> None:
        return None

    options.setdefault("build_pipeline", no_pipeline)
    options.setdefault("observer", RecordingObserver())
    options.setdefault("cores", 2.0)
    options.setdefault("drain_timeout", PATIENCE)
    options.setdefault("yielding", Yielding(options["cores"]))
    shared = [item.name for item in fields(EngineContext) if item.name in options]
    context = EngineContext(open_predictor=factory, **{name: options.pop(name) for name in shared})
    repository = options.pop("repository", None) or ModelRepository(root)
    return ModelRegistry(repository, context=context, **options)
