"""The path of a request: its jobs are queued, answered and failed together."""

import asyncio
import math
import threading
import weakref
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from paddlepool.contracts.caller import CALLER, Caller
from paddlepool.contracts.errors import (
    BackendError,
    DeadlineExceeded,
    GroupNotRunning,
    InvalidParameter,
    InvalidTensor,
    ModelNotFound,
    ModelOutputInvalid,
    Overloaded,
    RunRefused,
    WorkerCrashed,
)
from paddlepool.contracts.ports import WHOLE, RequestContext, RequestOutput, ServedModelInfo
from paddlepool.contracts.tensors import Array, Tensors
from paddlepool.engine.dataplane import DataPlane, TensorRequest, ready
from paddlepool.engine.registry.model import ServedModel
from paddlepool.engine.registry.request_context import ModelContext, PartOfRequest
from tests.engine.fakes import (
    DOUBLE,
    PATIENCE,
    Behaviour,
    Crash,
    FakeFactory,
    Gate,
    calling,
    doubled,
    eventually,
    failing,
    no_collections,
    open_registry,
    row,
    soon,
)
from tests.model_files import add_to_config, write_model


class JobPerNumber:
    """A pipeline that makes a job of each number of the payload and returns the doubled numbers."""

    def __init__(self) -> None:
        self.released = 0
        self.rounds = 1
        """How often the jobs are run, one round after another."""
        self.slow: list[asyncio.Event] | None = None
        """What requests wait for; None: nothing takes time."""
        self.finishing: asyncio.Event | None = None
        """Set by a request after its jobs, which then raises `failure` or takes for ever."""
        self.failure: Exception | None = None

    async def run(self, payload: Sequence[float], context: RequestContext) -> list[float]:
        if self.slow is not None:
            self.slow.append(asyncio.Event())
            await self.slow[-1].wait()
        values = [float(number) for number in payload]
        try:
            for _ in range(self.rounds):
                outputs = await context.infer([row(value) for value in values])
                values = [float(output["y"].item()) for output in outputs]
            if self.finishing is not None:
                self.finishing.set()
                if self.failure is not None:
                    raise self.failure
                await asyncio.Event().wait()
        finally:
            self.released += 1
        return values

    def close(self) -> None:
        pass


class Bench:
    """A data plane over model `double`, whose task is `several`."""

    def __init__(self, root: Path) -> None:
        self.pipeline, self.factory, self.listener = JobPerNumber(), FakeFactory(), Mock()
        options = DOUBLE.format(batch=4, delay=0, queue=6, count=1, start="always")
        write_model(root / "double", 'pipeline = "several"\n' + options)
        self.registry = open_registry(root, self.factory, build_pipeline=self._build)
        self.dataplane = DataPlane(
            self.registry, default_models={"several": "double"}, traffic_listener=self.listener
        )

    async def _build(self, info: ServedModelInfo) -> JobPerNumber:
        return self.pipeline

    async def run(self, *numbers: float) -> RequestOutput:
        return await self.dataplane.run("several", ready(numbers), timeout=PATIENCE)

    def served(self) -> ServedModel:
        [model] = self.registry.served()
        return model

    def count_rows(self) -> list[int]:
        """The rows of each run from now on."""
        sizes: list[int] = []

        def count(inputs: Tensors) -> Tensors:
            sizes.append(len(inputs["x"]))
            return doubled(inputs)

        self.factory.behaviour = count
        return sizes

    def waiting(self) -> int:
        """How many jobs are in the queue of the default group."""
        [depth] = [group.queue_depth for group in self.served().groups() if group.name == "main"]
        return depth


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path)
    await bench.registry.load_all()
    yield bench
    await bench.registry.close()


async def test_the_answers_stand_in_the_order_of_the_jobs(bench: Bench) -> None:
    """Six jobs fill one batch of four and one of two: an idle predictor is not handed the first
    alone."""
    sizes = bench.count_rows()
    assert (await bench.run(1, 2, 3, 4, 5, 6)).value == [2, 4, 6, 8, 10, 12]
    assert sizes == [4, 2]


def tensors(rows: int) -> Tensors:
    return {"x": np.arange(rows, dtype=np.float32).reshape(rows, 1)}


def tensor_request(
    inputs: Tensors, *, group: str | None = None, timeout: float = PATIENCE
) -> TensorRequest:
    return TensorRequest(inputs=inputs, group=group, priority=0, timeout=timeout)


def reading(
    inputs: Tensors, *, group: str | None = None, timeout: float = PATIENCE
) -> Callable[[ServedModel], Awaitable[TensorRequest]]:
    async def read(_: ServedModel) -> TensorRequest:
        return tensor_request(inputs, group=group, timeout=timeout)

    return read


async def test_a_request_of_many_rows_is_divided_and_joined(bench: Bench) -> None:
    """Over /v2 and of a task, with the queue's six places: 500 rows, and 500 jobs."""
    sizes = bench.count_rows()
    _, output = await bench.dataplane.infer("double", reading(tensors(502)))
    assert np.array_equal(output.value["y"], 2 * tensors(502)["x"])  # type: ignore[operator]
    assert sizes == [4] * 125 + [2]
    assert (await bench.run(*range(500))).value == [2 * number for number in range(500)]


class Watched(dict[str, Array]):
    """Tensors that record the threads in which they are read."""

    threads: set[threading.Thread]

    def items(self) -> Any:
        self.threads.add(threading.current_thread())
        return super().items()


@pytest.mark.parametrize("task", [True, False])
@pytest.mark.parametrize(("width", "large"), [(1 << 20, False), ((1 << 20) + 1, True)])
async def test_large_jobs_are_checked_and_padded_in_a_thread(
    tmp_path: Path, task: bool, width: int, large: bool
) -> None:
    """The bytes after padding count: one number more than 4 MiB becomes 8 MiB."""
    bench = Bench(tmp_path)
    add_to_config(
        tmp_path / "double",
        f'[[ragged]]\ninput = "x"\naxis = 1\nstep = {1 << 20}\nmax = {1 << 21}\n',
    )
    await bench.registry.load_all()
    job = Watched(x=np.ones((1, width), np.float32))
    job.threads = set()

    class Pipeline(JobPerNumber):
        async def run(self, payload: Any, context: RequestContext) -> Any:
            return await context.infer([job])

    if task:
        bench.served().pipeline = Pipeline()
        await bench.run()
    else:
        await bench.dataplane.infer("double", reading(job))
    assert threading.main_thread() in job.threads
    assert (len(job.threads) > 1) is large
    await bench.registry.close()


async def test_jobs_of_a_task_may_have_more_rows_than_a_run(bench: Bench) -> None:
    """The pipeline gets the outputs of each of its jobs, as it made them."""
    jobs = (row(1), tensors(9), tensors(5))

    class Pipeline(JobPerNumber):
        async def run(self, payload: Any, context: RequestContext) -> Any:
            return await context.infer(jobs)

    bench.served().pipeline = Pipeline()
    for job, outputs in zip(jobs, (await bench.run()).value, strict=True):
        assert np.array_equal(outputs["y"], 2 * job["x"])  # type: ignore[operator]


async def test_a_large_request_takes_turns(bench: Bench) -> None:
    """It never has more than a portion in the queue, and callers that come later are not behind
    its rest."""
    bench.factory.behaviour = gate = Gate()

    with calling("large"):
        large = asyncio.create_task(bench.dataplane.infer("double", reading(tensors(400))))
    await gate.entered()
    with calling("small"):
        small = [
            asyncio.create_task(bench.dataplane.infer("double", reading(row(value))))
            for value in (1000.0, 1001.0)
        ]
    await asyncio.sleep(0)
    assert bench.waiting() <= 5
    gate.open()
    await asyncio.gather(large, *small)
    order = [float(inputs["x"].max()) for inputs in gate.seen]
    assert len(order) == 101
    assert order.index(1001.0) < 10


async def test_calls_of_a_request_at_the_same_time_leave_room_in_the_queue(bench: Bench) -> None:
    bench.factory.behaviour = gate = Gate()
    context = ModelContext(deadline=soon(), parts={WHOLE: PartOfRequest(bench.served(), "main")})
    jobs = [row(float(value)) for value in range(10)]
    calls = [asyncio.create_task(context.infer(jobs)) for _ in range(2)]
    await gate.entered()
    assert bench.waiting() == 2
    gate.open()
    for outputs in await asyncio.gather(*calls):
        assert [output["y"].item() for output in outputs] == [2.0 * value for value in range(10)]
    assert context.calls == 0


@pytest.mark.parametrize(
    ("behaviour", "error"),
    [
        pytest.param(lambda inputs: {"y": inputs["x"][:, :0]}, None, id="fits"),
        pytest.param(
            lambda inputs: {"y": np.zeros((len(inputs["x"]), int(inputs["x"].max())))},
            ModelOutputInvalid,
            id="differ",
        ),
        pytest.param(
            failing(lambda: RunRefused("no", library_text="no")), InvalidTensor, id="refused"
        ),
    ],
)
async def test_parts_that_do_not_go_together_fail_the_request(
    bench: Bench, behaviour: Behaviour, error: type[Exception] | None
) -> None:
    bench.factory.behaviour = behaviour
    request = bench.dataplane.infer("double", reading(tensors(50)))
    if error is None:
        assert (await request)[1].value["y"].shape == (50, 0)
    else:
        with pytest.raises(error):
            await request
    await asyncio.sleep(0)  # the loop takes back what was queued
    assert bench.waiting() == 0


async def test_a_payload_that_cannot_be_read_gives_its_place_back(bench: Bench) -> None:
    """The caller gets the error, and the next request gets the place in the queue."""

    async def read() -> list[float]:
        return [3.0]

    async def refuse() -> list[float]:
        raise InvalidParameter("the body is not JSON")

    for _ in range(20):
        with pytest.raises(InvalidParameter, match="not JSON"):
            await bench.dataplane.run("several", refuse, timeout=PATIENCE)
    output = await bench.dataplane.run("several", read, timeout=PATIENCE)
    assert output.value == [6.0]


async def test_who_may_start_no_group_uses_those_that_run(bench: Bench) -> None:
    """By both entry points; the default group and one that another caller started are running."""

    async def choose(group: str, *, may_start: bool) -> None:
        CALLER.set(Caller(name="somebody", may_start=may_start))
        await bench.dataplane.run("several", ready([1.0]), group=group, timeout=PATIENCE)

    async def choose_raw(group: str) -> None:
        CALLER.set(Caller(name="somebody", may_start=False))

        await bench.dataplane.infer("double", reading(row(3), group=group))

    await choose("main", may_start=False)
    for refused in (choose("spare", may_start=False), choose_raw("spare")):
        with pytest.raises(GroupNotRunning, match="'spare' is not running"):
            await refused
    with pytest.raises(InvalidParameter):
        await choose("unknown", may_start=False)
    await choose("spare", may_start=True)
    await choose("spare", may_start=False)
    await choose_raw("spare")


async def test_one_job_that_fails_fails_the_request_at_once(bench: Bench) -> None:
    """While another batch of the same request still runs; what is queued is taken back."""
    gate = Gate()

    def behave(inputs: Tensors) -> Tensors:
        if 13 in inputs["x"]:
            raise BackendError("unlucky")
        return gate(inputs)

    bench.factory.behaviour = behave
    # The batch of four fails whole, and again for its guilty job: that one comes first, so that
    # the gate then holds a job of a request that has its answer already.
    with pytest.raises(BackendError, match="unlucky"):
        await bench.run(13, 1, 2, 3, 4, 5)
    await gate.entered()
    assert bench.waiting() == 0
    assert bench.pipeline.released == 1
    gate.open()


async def test_who_leaves_while_its_work_is_done_gives_its_place_back(bench: Bench) -> None:
    """And so does one whose picture turns out to be none."""
    bench.pipeline.slow = []
    for _ in range(3):
        waiting = [asyncio.create_task(bench.run(number)) for number in range(6)]
        await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    bench.pipeline.slow = None
    assert (await bench.run(1, 2, 3, 4, 5, 6)).value == [2, 4, 6, 8, 10, 12]


class Reading:
    """Reads raw tensors of a body that is not there; `slow` as in JobPerNumber."""

    def __init__(self) -> None:
        self.slow: list[asyncio.Event] | None = None
        self.watched: list[weakref.ref[Any]] = []

    async def __call__(self, served: ServedModel) -> TensorRequest:
        if self.slow is not None:
            self.slow.append(asyncio.Event())
            await self.slow[-1].wait()
        inputs = row(3)
        self.watched.append(weakref.ref(inputs["x"]))
        return tensor_request(inputs)


async def test_what_finds_no_room_is_refused_before_its_work(bench: Bench) -> None:
    """Both entry points share the six places: three pictures, three bodies, and no seventh of
    either, whose body is not asked for; the six are answered."""
    read = Reading()
    waiting: list[Any] = []
    bench.pipeline.slow = read.slow = waiting

    async def unread() -> list[float]:
        raise AssertionError("there is no place for it")

    def infer() -> Coroutine[Any, Any, tuple[TensorRequest, RequestOutput]]:
        return bench.dataplane.infer("double", read, place_timeout=PATIENCE)

    pictures = [asyncio.create_task(bench.run(number)) for number in range(3)]
    bodies = [asyncio.create_task(infer()) for _ in range(3)]
    await asyncio.sleep(0)
    for seventh in (infer(), bench.dataplane.run("several", unread, timeout=PATIENCE)):
        with pytest.raises(Overloaded, match="the queue is full: 6 jobs wait, limit 6"):
            await seventh
    assert len(waiting) == 6
    for proceed in waiting:
        proceed.set()
    assert [(await picture).value for picture in pictures] == [[0], [2], [4]]
    assert [(await body)[1].value["y"].item() for body in bodies] == [6, 6, 6]
    assert bench.served().statistics().failure.count == 2


async def test_a_small_body_is_read_before_it_has_a_place(bench: Bench) -> None:
    """Reading it costs less than asking for a place twice; its group may be another one."""

    with ExitStack() as places:

        async def read(served: ServedModel) -> TensorRequest:
            places.close()
            return tensor_request(row(3), group="spare")

        served = places.enter_context(bench.registry.lease("double"))
        for _ in range(6):
            places.enter_context(served.reserve(deadline=float("inf")))
        _, output = await bench.dataplane.infer("double", read)
    assert output.group == "spare"


async def test_a_body_that_cannot_be_read_gives_everything_back(bench: Bench) -> None:
    """The place in the queue and the hold on the model version."""

    async def unfit(served: ServedModel) -> TensorRequest:
        raise InvalidTensor("no tensors")

    for _ in range(7):
        with pytest.raises(InvalidTensor):
            await bench.dataplane.infer("double", unfit, place_timeout=PATIENCE)
    assert (await bench.run(1, 2, 3, 4, 5, 6)).value == [2, 4, 6, 8, 10, 12]
    assert await bench.served().drain(0)


async def test_a_deadline_counts_from_the_call_and_not_from_the_read_body(
    bench: Bench,
) -> None:
    """Reading is a part of what the client waits for."""
    now = [100.0]
    dataplane = DataPlane(bench.registry, default_models={}, clock=lambda: now[0])

    timeout = 6.0

    async def read(served: ServedModel) -> TensorRequest:
        now[0] += 7
        return tensor_request(row(3), timeout=timeout)

    with pytest.raises(DeadlineExceeded, match="within the deadline of 6000 ms") as late:
        await dataplane.infer("double", read)
    assert late.value.limit == 6000
    assert "group" not in late.value.message, "it has predictors running"
    timeout = 1e-6
    with pytest.raises(DeadlineExceeded, match=r"within the deadline of 0\.001 ms"):
        await dataplane.infer("double", read)


@pytest.mark.parametrize(
    ("ending", "error"),
    [
        ("left", asyncio.CancelledError),
        ("deadline", DeadlineExceeded),
        ("failed", BackendError),
    ],
)
async def test_a_request_that_ends_after_its_jobs_is_released_once(
    bench: Bench, ending: str, error: type[BaseException]
) -> None:
    """Whether its client leaves, its time is over or the pipeline raises."""
    bench.pipeline.finishing = asyncio.Event()
    bench.pipeline.failure = BackendError("unlucky") if ending == "failed" else None
    timeout = 0.05 if ending == "deadline" else PATIENCE
    task = asyncio.create_task(bench.dataplane.run("several", ready([1.0]), timeout=timeout))
    await bench.pipeline.finishing.wait()
    if ending == "left":
        task.cancel()
    with pytest.raises(error):
        await task
    assert bench.pipeline.released == 1
    assert await bench.served().drain(0)


@pytest.mark.parametrize("entry", ["task", "tensors"])
@pytest.mark.parametrize("many", [False, True], ids=["few", "many"])
@pytest.mark.parametrize("ending", ["answered", "failed", "refused", "left"])
async def test_nothing_of_a_request_waits_for_the_garbage_collector(
    bench: Bench, ending: str, many: bool, entry: str
) -> None:
    """Pictures and tensors go with their request: the collector comes by when small things have
    piled up, and large ones would by then fill the memory."""
    gate, read = Gate(), Reading()
    if ending == "failed":
        bench.factory.behaviour = failing(lambda: BackendError("unlucky"))
    if ending == "left":
        bench.pipeline.slow, bench.factory.behaviour = [], gate
    watched: list[weakref.ref[Any]] = read.watched

    def request() -> Coroutine[Any, Any, object]:
        if entry == "tensors":
            version = 9 if ending == "refused" else None
            return bench.dataplane.infer("double", read, version=version, place_timeout=PATIENCE)
        payload = array("d", [1.0, math.nan if ending == "refused" else 2.0] * (10 if many else 1))
        watched.append(weakref.ref(payload))
        return bench.dataplane.run("several", ready(payload), timeout=PATIENCE)

    async def run_three() -> None:
        """Holds no result when it returns."""
        for _ in range(3):
            task = asyncio.create_task(request())
            if ending == "left":
                await asyncio.sleep(0)
                task.cancel()
            [result] = await asyncio.gather(task, return_exceptions=True)
            assert isinstance(result, BaseException) == (ending != "answered")

    def gone() -> bool:
        gate.seen.clear()
        bench.listener.reset_mock()
        return all(payload() is None for payload in watched)

    with no_collections():
        await run_three()
        bench.pipeline.slow = None
        gate.open()
        assert len(watched) == (0 if (entry, ending) == ("tensors", "refused") else 3)
        await eventually(gone)
    assert await bench.served().drain(0)


async def test_the_listener_gets_the_group_and_the_outputs_of_a_request(bench: Bench) -> None:
    """While it still counts as a request, so that no background work begins before."""
    await bench.dataplane.infer("double", reading(row(1)))
    assert [name for name, *_ in bench.listener.mock_calls] == ["began", "completed", "ended"]
    served, group, _, outputs = bench.listener.completed.call_args.args
    assert (served.name, group, outputs["y"].tolist()) == ("double", "main", [[2]])


async def test_a_refused_request_begins_and_ends_without_outputs(bench: Bench) -> None:
    """Whatever the reason."""
    with pytest.raises(InvalidParameter, match="main, spare"):
        await bench.dataplane.infer("double", reading(row(1), group="nothing"))
    with pytest.raises(ModelNotFound):
        await bench.dataplane.run("several", ready(None), model="nothing", timeout=1)
    assert [name for name, *_ in bench.listener.mock_calls] == ["began", "ended"] * 2


async def test_a_deadline_missed_by_a_restarting_group_is_not_called_a_start(bench: Bench) -> None:
    """Its predictor was there and has crashed."""
    bench.factory.selftest = gate = Gate()
    bench.factory.behaviour = failing(lambda: Crash("gone"), times=1)
    with pytest.raises(WorkerCrashed):
        await bench.dataplane.infer("double", reading(row(1)))
    await eventually(lambda: not bench.served().ready())
    with pytest.raises(DeadlineExceeded, match="'main' has no predictor running"):
        await bench.dataplane.infer("double", reading(row(1), timeout=0.05))
    gate.open()
    await bench.dataplane.infer("double", reading(row(1)))


async def test_a_later_round_of_jobs_is_not_refused_for_room(bench: Bench) -> None:
    """A request that was admitted runs all of its rounds, even when the queue is full by then."""
    bench.pipeline.rounds = 2
    bench.factory.behaviour = gate = Gate()
    first = asyncio.create_task(bench.run(1))
    await gate.entered()
    with ExitStack() as places:
        for _ in range(6):
            places.enter_context(bench.served().reserve(deadline=math.inf))
        with pytest.raises(Overloaded):
            await bench.run(2)
        gate.open()
        assert (await first).value == [4]


async def test_rounds_of_jobs_are_accounted_together(bench: Bench) -> None:
    results: list[Any] = []
    plane = replace(bench.dataplane, stages_done=[lambda stages, done: results.extend(done)])
    bench.pipeline.rounds = 2
    output = await plane.run("several", ready([1.0, 3.0]), timeout=PATIENCE)
    assert output.value == [4, 12]
    _, _, inputs, outputs = bench.listener.completed.call_args.args
    assert inputs["x"].item() in (1, 3, 2, 6)
    assert outputs["y"].item() == 2 * inputs["x"].item()
    for stage, seconds in (("queue", "queue_seconds"), ("infer", "infer_seconds")):
        slowest = [max(getattr(r, seconds) for r in results[n : n + 2]) for n in (0, 2)]
        assert output.stages[stage] == sum(slowest)


async def test_a_pipeline_may_run_no_job(bench: Bench) -> None:
    """It is answered by the group that it would have used, and gives its place back."""
    bench.pipeline.rounds = 0
    for _ in range(7):
        output = await bench.run(1)
    assert (output.value, output.group, output.stages) == ([1], "main", {})
    bench.pipeline.rounds = 1
    assert (await bench.run()).value == []
    bench.listener.completed.assert_not_called()
