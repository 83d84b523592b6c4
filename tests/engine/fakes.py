"""Predictors, clocks and observers that tests steer: gates instead of sleeps."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from app.contracts.caller import CALLER, Caller, Quota
from app.contracts.errors import WorkerCrashed
from app.contracts.ports import InferResult, PredictorSpec, Ran, Suspended
from app.contracts.reasons import Rejection, Restart
from app.contracts.tensors import Tensors
from app.engine.pool.context import EngineContext
from app.engine.registry.model import ServedModel
from app.engine.registry.registry import ModelRegistry
from app.repository.layout import ModelRepository
from tests.model_files import write_config, write_version

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
    """What is asked inside is asked by that caller. The next test is asked by nobody again."""
    before = CALLER.set(Caller(name=name, quota=quota))
    try:
        yield
    finally:
        CALLER.reset(before)


def infer_result(**given: Any) -> InferResult:
    """What a job of one row gets back; `given` is what a test is about."""
    default = {
        "outputs": {},
        "model": "m",
        "version": 1,
        "group": "g",
        "instance": 0,
        "enqueued": 0.0,
        "queue_seconds": 0.0,
        "infer_seconds": 0.0,
        "batch_rows": 1,
    }
    return InferResult(**{**default, **given})


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


def wait_until(condition: Callable[[], bool], *, patience: float = PATIENCE) -> None:
    """For what becomes true in another thread or process without an event to wait for."""
    give_up = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < give_up, "it never became true"
        time.sleep(0.005)


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

    def wait_entered(self) -> None:
        assert self._begun.acquire(timeout=PATIENCE), "no run began"

    def let_one_pass(self) -> None:
        self._passes.release()

    def open(self) -> None:
        self._open.set()
        self._passes.release(64)


class FakePredictor:
    """Runs `behaviour` once its self-test is over (the first run after opening).

    What is sent runs when it is received. It never says that it takes as long as usual, unless its
    factory has `slow`: then the next batch is sent before the first is received.
    """

    def __init__(self, factory: FakeFactory) -> None:
        self._factory = factory
        self._tested = False
        self.dead: Restart | None = None
        self.resident = 1 << 20
        self.suspension: Suspended | None = None
        self.closed = threading.Event()
        self.aborted = threading.Event()
        self.timeouts: list[float] = []
        self.under_way: deque[Tensors] = deque()

    def run(self, inputs: Tensors, *, timeout: float) -> Tensors:
        assert self.dead is None, "a dead predictor was run"
        assert not self.closed.is_set(), "a closed predictor was run"
        if not self._tested:
            self._tested = True
            return self._factory.selftest(inputs)
        self.timeouts.append(timeout)
        try:
            return self._factory.behaviour(inputs)
        except Exception as error:
            self.dead = getattr(error, "kills", None)
            raise

    def send(self, inputs: Tensors) -> None:
        assert len(self.under_way) < 2, "a third batch was sent"
        self.under_way.append(inputs)

    def arrives(self, seconds: float) -> bool:
        return not self._factory.slow

    def receive(self, *, timeout: float) -> Ran:
        began = time.perf_counter()
        outputs = self.run(self.under_way.popleft(), timeout=timeout)
        seconds = self._factory.seconds
        return Ran(outputs, time.perf_counter() - began if seconds is None else seconds)

    def failure(self) -> Restart | None:
        return self.dead

    def settle(self) -> None:
        self.suspension = None

    def resident_bytes(self) -> int:
        return self.resident

    def abort(self) -> None:
        self.dead = Restart.KILLED
        self.aborted.set()

    def close(self) -> None:
        self.closed.set()


@dataclass
class FakeFactory:
    """Opens FakePredictors and remembers them; `refuse` is raised instead when it is set.

    A run says that it took `seconds`, or as long as it did.
    """

    behaviour: Behaviour = doubled
    selftest: Behaviour = doubled
    refuse: Exception | None = None
    slow: bool = False
    seconds: float | None = None
    opened: list[FakePredictor] = field(default_factory=list)
    specs: list[PredictorSpec] = field(default_factory=list)
    pauses: list[Suspended | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._opening = threading.Condition()

    def __call__(
        self, spec: PredictorSpec, *, suspension: Suspended | None = None
    ) -> FakePredictor:
        with self._opening:
            self.specs.append(spec)
            self.pauses.append(suspension)
            self._opening.notify_all()
            if self.refuse is not None:
                raise self.refuse
            self.opened.append(FakePredictor(self))
            self.opened[-1].suspension = suspension
            return self.opened[-1]

    def let_go(self) -> None:
        """Open the gate that its runs wait at, if they do: at the end of a test."""
        if isinstance(self.behaviour, Gate):
            self.behaviour.open()

    def wait_attempts(self, count: int) -> None:
        with self._opening:
            assert self._opening.wait_for(lambda: len(self.specs) >= count, PATIENCE)


class RecordingObserver:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.batches: list[dict[str, Any]] = []
        self.restarts: list[str] = []
        self.rejections: Counter[str] = Counter()

    def batch_done(self, **batch: Any) -> None:
        with self._changed:
            self.batches.append(batch)
            self._changed.notify_all()

    def restarted(self, *, model: str, group: str, reason: Restart) -> None:
        with self._changed:
            self.restarts.append(reason)
            self._changed.notify_all()

    def rejected(self, *, model: str, reason: Rejection) -> None:
        with self._changed:
            self.rejections[reason] += 1
            self._changed.notify_all()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, PATIENCE), "it was never observed"


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
[[instance_group]]
name = "spare"
backend = "fake"
start = "on_demand"
"""


def write_double(
    root: Path,
    *versions: int,
    batch: int = 4,
    delay: float = 0,
    queue: int = 16,
    count: int = 1,
) -> Path:
    """Model `double` (y = 2 x) with groups `main` and `spare`; returns its directory."""
    config = DOUBLE.format(batch=batch, delay=delay, queue=queue, count=count)
    write_config(root / "double", config)
    for version in versions or (1,):
        write_version(root / "double" / str(version))
    return root / "double"


def served_double(
    root: Path,
    factory: FakeFactory,
    observer: RecordingObserver,
    *,
    version: int = 1,
    **options: Any,
) -> ServedModel:
    """What write_double() has written, not started; `options` are those of an EngineContext."""
    options.setdefault("clock", time.monotonic)
    options.setdefault("max_resident_bytes", 1 << 30)
    context = EngineContext(open_predictor=factory, observer=observer, **options)
    return ServedModel(ModelRepository(root).read("double", version), context=context)


def open_registry(root: Path, factory: FakeFactory, **options: Any) -> ModelRegistry:
    options.setdefault("build_pipeline", lambda info: None)
    options.setdefault("observer", RecordingObserver())
    options.setdefault("cores", 2.0)
    options.setdefault("drain_timeout", PATIENCE)
    return ModelRegistry(ModelRepository(root), open_predictor=factory, **options)
