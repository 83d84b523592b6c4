"""Predictors in child processes that really die, hang and stop."""

import asyncio
import contextlib
import os
import re
import select
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlepool.contracts.errors import (
    BackendError,
    ConfigError,
    DeadlineExceeded,
    ModelOutputInvalid,
    RunRefused,
    WorkerCrashed,
)
from paddlepool.contracts.ports import PredictorSpec
from paddlepool.contracts.tensors import Tensors, TensorSpec
from paddlepool.engine.backends import BACKENDS
from paddlepool.engine.backends.process import NICE, ProcessBackend, ProcessPredictor
from paddlepool.engine.process.child import Child
from paddlepool.engine.process.suspension import Suspension
from paddlepool.engine.registry.registry import ModelRegistry
from paddlepool.models.repository.config import InstanceGroup
from paddlepool.models.repository.layout import ModelFiles
from tests.engine.backends.targets import CRASH, HANG, REFUSE, SPIN, STOP
from tests.engine.fakes import (
    PATIENCE,
    RecordingObserver,
    Sleeper,
    eventually,
    open_registry,
    row,
    soon,
    wait_until,
    write_double,
)
from tests.engine.process.hostile import UNEXPECTED, WRONG
from tests.model_files import PAIRS, write_manifest

pytestmark = pytest.mark.slow  # real processes, some of them hung on purpose

FAKES = {"fake": "tests.engine.backends.targets:open_double"}
TARGETS = BACKENDS | FAKES
OPENING = {"options": {}, "directory": "double/1", "program": "p"}
HOSTILE = {"fake": "tests.engine.process.hostile:open_turning_predictor"}


def spec(**changes: Any) -> PredictorSpec:
    fields: dict[str, Any] = {
        "directory": Path(),
        "program": "p",
        "params": "w",
        "inputs": PAIRS[0],
        "outputs": PAIRS[1],
        "backend": "fake",
        "threads": 1,
    }
    return PredictorSpec(**(fields | changes))


@contextlib.contextmanager
def opened(
    spec: PredictorSpec, backend: ProcessBackend | None = None, **options: Any
) -> Iterator[ProcessPredictor]:
    predictor = (backend or ProcessBackend(TARGETS))(spec, **options)
    assert isinstance(predictor, ProcessPredictor)
    with contextlib.closing(predictor):
        yield predictor


def opened_group(
    files: ModelFiles, backend: str, *, threads: int = 1, **options: Any
) -> contextlib.AbstractContextManager[ProcessPredictor]:
    """Open a group with these options on the files of a model."""
    group = InstanceGroup(name="tested", backend=backend, threads=threads, options=options)
    return opened(files.spec(group))


@pytest.fixture
def predictor() -> Iterator[ProcessPredictor]:
    with opened(spec()) as predictor:
        yield predictor


def send(predictor: ProcessPredictor, inputs: Tensors) -> None:
    predictor.put(inputs)
    predictor.send(inputs)


def readable(predictor: ProcessPredictor, seconds: float) -> bool:
    """Whether the event loop would be told."""
    return bool(select.select([predictor], [], [], seconds)[0])


@pytest.mark.parametrize("shape", [(1, 1), (3, 0), (1, 1 << 21), (7, 5)], ids=str)
def test_arrays_of_every_size_cross(predictor: ProcessPredictor, shape: tuple[int, int]) -> None:
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) % 7
    assert np.array_equal(predictor.run({"x": x}, timeout=PATIENCE)["y"], 2 * x)


def test_two_batches_may_be_under_way(predictor: ProcessPredictor) -> None:
    batches = [np.full((1, 1 << 16), value, np.float32) for value in range(5)]
    send(predictor, {"x": batches[0]})
    for batch, following in pairwise(batches):
        send(predictor, {"x": following})
        assert np.array_equal(predictor.receive(timeout=PATIENCE).outputs["y"], 2 * batch)
    assert np.array_equal(predictor.receive(timeout=PATIENCE).outputs["y"], 2 * batches[-1])
    assert not readable(predictor, 0.01)


def test_a_refused_batch_leaves_the_one_behind_it(predictor: ProcessPredictor) -> None:
    send(predictor, row(REFUSE))
    send(predictor, row(4))
    with pytest.raises(RunRefused):
        predictor.receive(timeout=PATIENCE)
    assert predictor.receive(timeout=PATIENCE).outputs["y"] == 8


def test_a_dead_process_is_noticed_when_a_batch_is_sent(predictor: ProcessPredictor) -> None:
    send(predictor, row(CRASH))
    assert readable(predictor, PATIENCE)
    os.waitid(os.P_PID, predictor.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(WorkerCrashed, match="crashed"):
        send(predictor, row(1))
    with pytest.raises(WorkerCrashed, match="crashed"):
        predictor.receive(timeout=PATIENCE)


@pytest.mark.parametrize(
    ("value", "timeout", "raised", "reason"),
    [
        (CRASH, PATIENCE, WorkerCrashed, "crashed"),
        (STOP, PATIENCE, WorkerCrashed, "stopped"),
        (HANG, 0.3, DeadlineExceeded, "timeout"),
    ],
)
def test_the_end_of_a_run_is_named(
    predictor: ProcessPredictor, value: float, timeout: float, raised: type[Exception], reason: str
) -> None:
    """A native crash, a stop (nothing in it will ever answer) and a hang, which is killed."""
    began = time.monotonic()
    with pytest.raises(raised):
        predictor.run(row(value), timeout=timeout)
    assert time.monotonic() - began < PATIENCE / 4
    assert predictor.failure() == reason
    wait_until(lambda: predictor.resident_bytes() == 0)


def test_a_refusal_leaves_the_process_alive(caplog: pytest.LogCaptureFixture) -> None:
    directory = Path("/models/double/1")
    with opened(spec(directory=directory)) as predictor:
        with pytest.raises(RunRefused) as refused:
            predictor.run(row(REFUSE), timeout=PATIENCE)
        assert refused.value.library_text == "the framework read p"
        assert refused.value.message.endswith(": the framework read p")
        assert predictor.failure() is None
        assert predictor.run(row(1), timeout=PATIENCE)["y"] == 2
    assert not caplog.messages


def test_the_place_of_an_error_is_told_without_its_text() -> None:
    """To callers of a child that is no predictor: a codec's text may quote a client's picture."""
    with (
        contextlib.closing(Child(FAKES["fake"], OPENING)) as child,
        pytest.raises(BackendError) as raised,
    ):
        child.call({}, row(REFUSE), timeout=PATIENCE)
    assert re.match(r"ValueError in .*run:\d+$", raised.value.message)
    assert "framework" not in raised.value.message


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        pytest.param({"backend": "torch"}, ConfigError, "'torch' is unknown", id="backend"),
        pytest.param({"options": {"x": 1}}, ConfigError, "has no option 'x'", id="option"),
        pytest.param({"options": {"die": 1}}, ConfigError, "'die' must be a bool", id="type"),
        pytest.param({"options": {"refuse": True}}, BackendError, "is refused", id="refusal"),
        pytest.param({"options": {"raise": True}}, BackendError, "^no operator foo$", id="raise"),
        pytest.param(
            {"options": {"die": True}}, WorkerCrashed, "ended while it loaded", id="death"
        ),
    ],
)
def test_what_cannot_be_opened_says_why(
    changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    """A process that dies may have died of something that passes: no refusal."""
    with pytest.raises(error, match=message):
        ProcessBackend(FAKES)(spec(**changes))


@pytest.mark.parametrize("suspension", [None, Suspension()], ids=["alone", "suspended"])
def test_a_predictor_gives_way_once_it_serves(suspension: Suspension | None) -> None:
    """A lost one must be replaced soon, and one that is suspended gets little time as it is."""
    own = os.getpriority(os.PRIO_PROCESS, 0)
    low = min(19, own + NICE)
    backends = {"fake": "tests.engine.backends.targets:open_priorities"}
    with opened(spec(), ProcessBackend(backends), suspension=suspension) as predictor:
        opening, tested = predictor.run(row(1), timeout=PATIENCE)["y"].tolist()[0]
        predictor.end_suspension()
        [[_, serving]] = predictor.run(row(1), timeout=PATIENCE)["y"].tolist()
        policy = os.sched_getscheduler(predictor.pid)
        threads = [int(task.name) for task in Path(f"/proc/{predictor.pid}/task").iterdir()]
        at_end = {os.getpriority(os.PRIO_PROCESS, thread) for thread in threads}
    assert (opening, tested, serving) == (own, low if suspension is None else own, low)
    assert (len(threads), at_end) == (2, {low})
    assert policy == os.SCHED_OTHER, "nobody without privileges could take it back"


def test_a_settled_predictor_serves_whatever_is_held() -> None:
    suspension = Suspension()
    with opened(spec(), suspension=suspension) as predictor:
        suspension.hold()
        predictor.end_suspension()
        assert predictor.run(row(1), timeout=PATIENCE)["y"].tolist() == [[2]]
        os.kill(predictor.pid, signal.SIGSTOP)
        wait_until(lambda: predictor.failure() == "stopped")


def test_a_held_predictor_gets_ahead_with_moments() -> None:
    """A server that is never idle can still open one: it runs and pauses in turns."""
    suspension = Suspension(slice_seconds=0.01, pause_seconds=0.01)
    suspension.hold()
    with opened(spec(), suspension=suspension) as predictor:
        assert suspension.held
        assert predictor.run(row(1), timeout=PATIENCE)["y"].tolist() == [[2]]


@contextlib.asynccontextmanager
async def serving_double(
    root: Path,
    observer: RecordingObserver,
    targets: Mapping[str, str],
    *,
    count: int,
    width: int = -1,
) -> AsyncIterator[ModelRegistry]:
    """Model `double` on so many real processes, batches of one; x and y have so many columns."""
    directory = write_double(root, count=count, batch=1)
    if width != -1:
        specs = [(TensorSpec(name, "float32", (-1, width)),) for name in "xy"]
        write_manifest(directory / "1", specs=(specs[0], specs[1]))
    registry = open_registry(root, ProcessBackend(targets), observer=observer)
    try:
        await registry.load_all()
        yield registry
    finally:
        await registry.close()


@pytest.fixture
async def registry(
    tmp_path: Path, observer: RecordingObserver, predictors: Callable[[], set[int]]
) -> AsyncIterator[ModelRegistry]:
    async with serving_double(tmp_path, observer, FAKES, count=2) as registry:
        yield registry


@pytest.mark.parametrize("wrong", range(2000, 2000 + len(WRONG)), ids=WRONG)
async def test_a_predictor_that_turns_hostile_costs_its_request(
    tmp_path: Path,
    observer: RecordingObserver,
    wrong: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The process is replaced, unless only the manifest contradicts its output."""
    unexpected = list(WRONG)[wrong - 2000] in UNEXPECTED
    serving = serving_double(tmp_path, observer, HOSTILE, count=1, width=3)
    async with serving as registry:
        with registry.lease("double") as model:
            with pytest.raises(ModelOutputInvalid if unexpected else WorkerCrashed):
                await model.submit(row(wrong, 0, 0), deadline=soon())
            good = await model.submit(row(1, 2, 3), deadline=soon())
        assert good.outputs["y"].tolist() == [[2, 4, 6]]  # type: ignore[union-attr]
        assert observer.restarts == ([] if unexpected else ["corrupt"])
        assert ("output 'y' has shape" in caplog.text) == unexpected


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP], ids=str)
async def test_a_signal_under_load_costs_one_request(
    registry: ModelRegistry,
    observer: RecordingObserver,
    predictors: Callable[[], set[int]],
    sent: signal.Signals,
) -> None:
    outcomes: list[BaseException | None] = []
    stopped = False

    async def client() -> None:
        while not stopped:
            with registry.lease("double") as model:
                future = model.submit(row(SPIN), deadline=soon())
                await asyncio.wait([future])
                outcomes.append(future.exception())

    def live() -> int:
        return registry.served()[0].groups()[0].live

    before = predictors()
    clients = [asyncio.create_task(client()) for _ in range(4)]
    await eventually(lambda: len(observer.batches) >= 20)
    os.kill(min(before), sent)
    await eventually(lambda: len(observer.restarts) == 1)
    await eventually(lambda: live() == 2)
    stopped = True
    await asyncio.gather(*clients)
    lost = [error for error in outcomes if error is not None]
    assert len(lost) <= 1
    assert all(isinstance(error, WorkerCrashed) for error in lost)
    assert len(outcomes) > 20 + len(lost)
    after = predictors()
    assert len(after) == 2
    assert len(after & before) == 1


@pytest.mark.parametrize(
    ("sent", "reason"), [(signal.SIGKILL, "killed"), (signal.SIGSTOP, "stopped")], ids=str
)
async def test_an_idle_predictor_is_replaced_before_anyone_asks(
    registry: ModelRegistry,
    observer: RecordingObserver,
    predictors: Callable[[], set[int]],
    sent: signal.Signals,
    reason: str,
) -> None:
    """Struck while it waits, it is noticed and replaced without a request being lost."""
    struck = min(predictors())
    os.kill(struck, sent)
    await eventually(lambda: observer.restarts == [reason])
    await eventually(lambda: registry.served()[0].groups()[0].live == 2)
    assert struck not in predictors()


async def test_a_hanging_request_is_answered_at_its_deadline(
    registry: ModelRegistry, observer: RecordingObserver
) -> None:
    """504 at the deadline, not later; the worker is killed 2 s after it and comes back."""
    deadline = time.monotonic() + 0.5
    sleeper = Sleeper(deadline)
    with registry.lease("double") as model:
        with pytest.raises(DeadlineExceeded):
            await model.submit(row(HANG), deadline=deadline)
        assert 0.0 <= time.monotonic() - deadline < 0.2 + await asyncio.to_thread(sleeper.late)
        await eventually(lambda: observer.restarts == ["timeout"])
        assert time.monotonic() - deadline >= 2.0
        await eventually(lambda: model.groups()[0].live == 2)
