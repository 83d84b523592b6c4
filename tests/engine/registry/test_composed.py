"""Composed models: one request over several models, admitted once, on one consistent set."""

import asyncio
import random
import shutil
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from paddlepool.contracts.errors import (
    BackendError,
    BackendUnavailable,
    DeadlineExceeded,
    InvalidParameter,
    ModelNotReady,
    Overloaded,
    PaddlepoolError,
    WorkerCrashed,
)
from paddlepool.contracts.ports import RequestOutput, ServedModelInfo
from paddlepool.contracts.status import Choice
from paddlepool.contracts.tensors import Tensors
from paddlepool.engine.concurrency import NoThread
from paddlepool.engine.dataplane import DataPlane, TensorRequest, ready
from paddlepool.engine.pool.group import CRASH_LOOP
from paddlepool.engine.registry.composed import MARGIN, ComposedModel
from tests.engine.chain import (
    COMPOSED,
    Between,
    Chain,
    FactoryByModel,
    rewrite_manifest,
    write_composed,
)
from tests.engine.fakes import (
    PATIENCE,
    Crash,
    FakeFactory,
    Gate,
    calling,
    doubled,
    eventually,
    open_registry,
    write_double,
)
from tests.model_files import add_to_config, write_config

RAGGED = """
[[ragged]]
input = "x"
axis = 1
step = 4
max = 32
"""


class Bench:
    """A data plane over `chain`, composed of `one` and `two`, each with a queue of six."""

    def __init__(self, root: Path, start: str = "always", **options: Any) -> None:
        self.root, self.factory, self.between = root, FactoryByModel(), Between()
        self.pipelines: list[Chain] = []
        self.listener, self.stages = Mock(), Mock()
        for name in ("one", "two"):
            write_double(root, name=name, queue=6, start=start)
        write_composed(root)
        self.registry = open_registry(root, self.factory, build_pipeline=self._build, **options)
        self.dataplane = DataPlane(
            self.registry,
            default_models={"chain": "chain"},
            traffic_listener=self.listener,
            stages_done=[self.stages],
        )

    async def _build(self, info: ServedModelInfo) -> Chain | None:
        if info.pipeline is None:
            return None
        self.pipelines.append(Chain(info, self.between))
        return self.pipelines[-1]

    async def run(self, *numbers: float, **options: Any) -> RequestOutput:
        options = {"timeout": PATIENCE} | options
        return await self.dataplane.run("chain", ready(numbers), **options)

    def chain(self) -> ComposedModel:
        [model] = self.registry.composed()
        return model

    def state_of(self, name: str) -> tuple[str, str]:
        [status] = [status for status in self.registry.index() if status.name == name]
        return status.state, status.reason

    def leases(self) -> dict[str, int]:
        return {model.name: model.leases for model in self.registry.all_served()}


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path)
    await bench.registry.load_all()
    yield bench
    await bench.registry.close()


AT_REST = {"chain": 0, "one": 1, "two": 1}
"""The composed model leases its parts."""


async def test_a_request_runs_on_every_part(bench: Bench) -> None:
    output = await bench.run(1, 2, 3)
    assert output.value == ([4, 8, 12], (1, 1))
    assert (output.model, output.version) == ("chain", 1)
    assert output.group == "first:main,second:main"
    assert list(output.stages) == [
        "queue", "infer", "first-queue", "first-infer", "second-queue", "second-infer",
    ]  # fmt: skip
    assert bench.leases() == AT_REST


async def test_observers_see_a_job_of_each_part(bench: Bench) -> None:
    """So that groups are compared on what real requests run."""
    output = await bench.run(1, 2)
    seen = [call.args for call in bench.listener.completed.call_args_list]
    assert [(served.name, group) for served, group, *_ in seen] == [
        ("one", "main"),
        ("two", "main"),
    ]
    for (_, _, inputs, outputs), of_part in zip(seen, ((1, 2), (2, 4)), strict=True):
        assert inputs["x"].item() in of_part
        assert outputs["y"].item() == 2 * inputs["x"].item()
    [[reported, results]] = [call.args for call in bench.stages.call_args_list]
    assert reported is output
    assert [result.model for result in results] == ["one", "one", "two", "two"]


async def test_groups_are_chosen_by_part(bench: Bench) -> None:
    output = await bench.run(1, group="second:spare")
    assert output.group == "first:main,second:spare"
    assert [group.started for group in bench.chain().parts["second"].groups()] == [True, True]


@pytest.mark.parametrize(
    "group", ["spare", "third:main", "second:", "second:main,second:spare", "second:none"]
)
async def test_a_wrong_choice_of_groups_is_refused(bench: Bench, group: str) -> None:
    match = (
        r"are first, second|^the part second, model two, has no such instance group; it has main"
    )
    with pytest.raises(InvalidParameter, match=match):
        await bench.run(1, group=group)
    assert bench.leases() == AT_REST


async def test_it_takes_no_tensors(bench: Bench) -> None:
    async def read(_: object) -> TensorRequest:
        raise AssertionError("never read")

    with pytest.raises(InvalidParameter, match="composed of one, two"):
        await bench.dataplane.infer("chain", read)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            'pipeline = "chain"\n[parts]\nfirst = "one"\nsecond = "none"',
            "model none, is not served",
        ),
        ('pipeline = "chain"\n[parts]\nfirst = "chain"\nsecond = "two"', "is not served"),
        ('[parts]\nfirst = "one"', "needs a pipeline"),
        (COMPOSED + "[dynamic_batching]\nmax_batch_size = 4", "dynamic_batching"),
    ],
)
async def test_a_wrong_composition_is_not_served(tmp_path: Path, text: str, reason: str) -> None:
    bench = Bench(tmp_path)
    write_config(tmp_path / "chain", text)
    await bench.registry.load_all()
    try:
        state, why = bench.state_of("chain")
        assert state == "UNAVAILABLE"
        assert reason in why
        assert bench.registry.ready("one")
    finally:
        await bench.registry.close()


async def test_the_sample_is_a_whole_request(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    (tmp_path / "chain" / "1" / "answer.json").write_text("5.0", "utf-8")
    rewrite_manifest(tmp_path / "chain" / "1")
    await bench.registry.load_all()
    assert bench.state_of("chain") == ("UNAVAILABLE", "self-test: 4.0 instead of 5.0")
    assert bench.leases() == {"one": 0, "two": 0}
    await bench.registry.close()


@pytest.fixture
async def lazy(tmp_path: Path) -> AsyncIterator[Bench]:
    """Its parts start on demand."""
    bench = Bench(tmp_path, start="on_demand")
    await bench.registry.load_all()
    yield bench
    await bench.registry.close()


async def test_parts_on_demand_open_with_the_first_request(lazy: Bench) -> None:
    """It is the first to be answered after the sample, which the server has tested then."""
    assert lazy.state_of("chain") == ("READY", "")
    assert not lazy.factory.of
    with calling("somebody"):
        output = await lazy.run(5)
    assert output.value == ([20], (1, 1))
    tested = [gate.opened[0] for gate in lazy.factory.of.values()]
    assert len(tested) == 2
    assert lazy.leases() == AT_REST


async def test_parts_on_demand_that_answer_wrongly_answer_nobody(lazy: Bench) -> None:
    two = lazy.factory.of["two"]
    two.behaviour = lambda inputs: {"y": 3 * inputs["x"]}  # type: ignore[operator]
    for _ in range(2):
        with pytest.raises(BackendError, match=r"self-test: 6\.0 instead of 4\.0"):
            await lazy.run(5)
    two.behaviour = doubled
    assert (await lazy.run(5)).value == ([20], (1, 1))
    assert lazy.leases() == AT_REST


async def test_parts_on_demand_are_tested_again_after_a_lack_of_threads(
    lazy: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "chain sample":
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(NoThread):
            await lazy.run(5)
    assert (await lazy.run(5)).value == ([20], (1, 1))


async def test_a_deadline_does_not_end_the_test_of_parts_on_demand(lazy: Bench) -> None:
    lazy.factory.of["one"].behaviour = gate = Gate()
    with pytest.raises(DeadlineExceeded):
        await lazy.run(5, timeout=0.05)
    await gate.entered()
    gate.open()
    assert (await lazy.run(5)).value == ([20], (1, 1))
    samples = [seen["x"].item() for seen in gate.seen]  # type: ignore[union-attr]
    assert samples == [1, 5]


@pytest.mark.parametrize(("chosen", "next_group"), [("main", "spare"), ("spare", "main")])
async def test_parts_on_demand_that_this_machine_lacks_leave_their_places(
    tmp_path: Path, chosen: str, next_group: str
) -> None:
    """As on ARM, where Paddle has no oneDNN: the first request finds it out, for both parts."""
    kept = Choice(group=chosen, by="kept", reason="measured before")
    bench = Bench(tmp_path, start="on_demand", stored_choice=lambda _: kept)

    def lacking(inputs: Tensors, factory: FakeFactory) -> Tensors:
        if bool(factory.specs[-1].options) == (chosen == "spare"):
            raise BackendUnavailable("onednn: this build of Paddle has no oneDNN")
        return doubled(inputs)

    for name in ("one", "two"):
        config = (tmp_path / name / "config.toml").read_text("utf-8")
        config = config.replace('default_group = "main"', 'default_group = "auto"')
        write_config(tmp_path / name, config + "options = { of_spare = true }\n")
        bench.factory.of[name].selftest = partial(lacking, factory=bench.factory.of[name])
    await bench.registry.load_all()
    with pytest.raises(BackendError, match="cannot start"):
        await bench.run(5)

    def groups() -> set[str]:
        return {model.config.default_group for model in bench.registry.served()}

    await eventually(lambda: groups() == {next_group} and bool(bench.registry.composed()))
    assert (await bench.run(5)).value == ([20], (1, 1))
    await eventually(lambda: bench.leases() == AT_REST)
    await bench.registry.close()


async def test_a_new_part_on_demand_is_tested_before_it_serves(lazy: Bench) -> None:
    lazy.factory.of["two"].behaviour = lambda inputs: {"y": 3 * inputs["x"]}  # type: ignore[operator]
    write_double(lazy.root, 2, name="two", queue=6, start="on_demand")
    with pytest.raises(BackendError, match="chain@1, which uses it, fails: self-test"):
        await lazy.registry.load("two")
    lazy.factory.of["two"].behaviour = doubled
    assert (await lazy.run(1)).value == ([4], (1, 1))


async def test_a_fault_in_the_code_of_its_task_does_not_keep_a_part_from_loading(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)
    (tmp_path / "chain" / "1" / "sample.txt").write_text("no number", "utf-8")
    rewrite_manifest(tmp_path / "chain" / "1")
    (tmp_path / "two").rename(tmp_path / "elsewhere")
    await bench.registry.load_all()
    (tmp_path / "elsewhere").rename(tmp_path / "two")
    await bench.registry.load("two")
    reason = "self-test: the pipeline raised ValueError, see the log"
    assert bench.state_of("chain") == ("UNAVAILABLE", reason)
    assert bench.state_of("two") == ("READY", "")
    assert set(bench.leases().values()) == {0}
    await bench.registry.close()


async def test_a_part_that_comes_later_completes_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    (tmp_path / "two").rename(tmp_path / "elsewhere")
    await bench.registry.load_all()
    assert bench.state_of("chain") == ("UNAVAILABLE", "its part second, model two, is not served")
    (tmp_path / "elsewhere").rename(tmp_path / "two")
    await bench.registry.load("two")
    assert (await bench.run(1)).value == ([4], (1, 1))
    await bench.registry.close()


async def test_a_part_that_is_mended_completes_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    two = bench.factory.of["two"]
    two.behaviour = lambda inputs: {"y": 3 * inputs["x"]}  # type: ignore[operator]
    await bench.registry.load_all()
    assert bench.state_of("chain") == ("UNAVAILABLE", "self-test: 6.0 instead of 4.0")
    two.behaviour = doubled
    write_double(tmp_path, 2, name="two", queue=6)
    await bench.registry.load("two")
    assert (await bench.run(1)).value == ([4], (1, 2))
    await bench.registry.close()


async def test_a_part_that_is_unloaded_takes_it_along(bench: Bench) -> None:
    await bench.registry.unload("two")
    assert bench.state_of("chain") == ("UNAVAILABLE", "its part second, model two, is not served")
    with pytest.raises(ModelNotReady):
        await bench.run(1)
    await bench.registry.load("two")
    assert (await bench.run(1)).value == ([4], (1, 1))
    assert bench.leases() == AT_REST


async def test_it_is_as_ready_as_its_parts(bench: Bench) -> None:
    assert bench.registry.ready("chain")
    two = bench.factory.of["two"]
    two.refuse = BackendError("no")
    two.opened[0].die()
    await eventually(lambda: not bench.registry.ready("two"))
    assert not bench.registry.ready("chain")


async def test_a_request_keeps_its_set_of_parts_while_one_is_replaced(bench: Bench) -> None:
    """The request before the swap ends on the old version, the next one runs on the new one."""
    bench.between.closed = True
    before = asyncio.create_task(bench.run(1))
    await bench.between.waiting(1)
    bench.between.closed = False  # for the self-test of the new set
    write_double(bench.root, 2, name="two", queue=6)
    loading = asyncio.create_task(bench.registry.load("two"))
    await eventually(lambda: bench.chain().parts["second"].version == 2)
    assert (await bench.run(1)).value == ([4], (1, 2))
    assert not loading.done()  # the old set drains
    bench.between.open()
    assert (await before).value == ([4], (1, 1))
    await loading
    assert bench.leases() == AT_REST
    assert [pipeline.closed for pipeline in bench.pipelines] == [True, False]
    assert bench.factory.of["two"].opened[0].closed.is_set()


async def test_a_part_that_breaks_it_is_not_swapped(bench: Bench) -> None:
    """The new version passes its own self-test and not that of the whole request."""
    bench.factory.of["two"].behaviour = lambda inputs: {"y": 3 * inputs["x"]}  # type: ignore[operator]
    write_double(bench.root, 2, name="two", queue=6)
    with pytest.raises(BackendError, match="which uses it, fails: self-test"):
        await bench.registry.load("two")
    bench.factory.of["two"].behaviour = doubled
    assert (await bench.run(1)).value == ([4], (1, 1))
    assert bench.registry.find("two", 2) is None
    assert bench.leases() == AT_REST


async def test_a_part_that_breaks_one_of_two_composed_models_leaves_no_lease(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)
    fork = shutil.copytree(tmp_path / "chain", tmp_path / "fork") / "1"
    (fork / "sample.txt").write_text("5", "utf-8")
    (fork / "answer.json").write_text("20.0", "utf-8")
    rewrite_manifest(fork)
    await bench.registry.load_all()
    bench.factory.of["two"].behaviour = lambda inputs: {
        "y": np.where(inputs["x"] == 10, inputs["x"], doubled(inputs)["y"])
    }
    write_double(tmp_path, 2, name="two", queue=6)
    with pytest.raises(BackendError, match="fork@1, which uses it, fails: self-test"):
        await bench.registry.load("two")
    assert bench.leases() == {"chain": 0, "fork": 0, "one": 2, "two": 2}
    assert [pipeline.closed for pipeline in bench.pipelines] == [False, False, True, True]
    await bench.registry.close()


async def test_a_new_choice_of_group_is_adopted_by_it(bench: Bench) -> None:
    [one, _] = bench.registry.served()
    choice = replace(one.choice, group="spare")
    assert await bench.registry.adopt(one, choice)
    assert (await bench.run(1)).group == "first:spare,second:main"
    assert bench.leases() == AT_REST


async def test_later_parts_are_never_refused_for_room(bench: Bench) -> None:
    """Six requests wait between the parts, with 24 jobs for a queue of six."""
    bench.between.closed, bench.between.factor = True, 4
    requests = [asyncio.create_task(bench.run(1)) for _ in range(6)]
    await bench.between.waiting(6)
    bench.between.open()
    assert [(await request).value[0] for request in requests] == [[4] * 4] * 6


async def test_requests_have_as_many_places_as_the_first_part(bench: Bench) -> None:
    """Also while they wait for later parts. A caller without a request finds a place."""
    bench.between.closed = True
    places = 6 + 1
    requests = [asyncio.create_task(bench.run(1)) for _ in range(places)]
    await bench.between.waiting(places)
    with pytest.raises(Overloaded, match=f"{places} requests wait, limit {places}"):
        await bench.run(1)
    with calling("another"):
        requests.append(asyncio.create_task(bench.run(1)))
    await bench.between.waiting(places + 1)
    bench.between.open()
    await asyncio.gather(*requests)
    assert bench.leases() == AT_REST


async def test_a_request_that_would_be_late_is_refused_before_any_work(tmp_path: Path) -> None:
    """The work of the second part counts, as the sample took it, for the requests ahead, too.

    They need 4 s and a little.
    """
    bench = Bench(tmp_path)
    bench.factory.of["two"].seconds = 1.0
    await bench.registry.load_all()
    bench.between.closed = True
    ahead = [asyncio.create_task(bench.run(1)) for _ in range(3)]
    await bench.between.waiting(3)
    runs = len(bench.listener.completed.call_args_list)
    with pytest.raises(Overloaded, match="the queue needs about") as refused:
        await bench.run(1, timeout=3.9 / MARGIN)  # more than they need, with too little margin
    assert 3.9 < float(refused.value.received or 0) < 5
    bench.between.open()
    await asyncio.gather(*ahead)
    assert len(bench.listener.completed.call_args_list) == runs + 6
    await bench.registry.close()


async def test_a_late_request_is_dropped_whole(bench: Bench) -> None:
    bench.between.closed = True
    with pytest.raises(DeadlineExceeded):
        await bench.run(1, timeout=0.05)
    assert bench.leases() == AT_REST


@pytest.mark.parametrize(
    "steps", [300, pytest.param(10_000, marks=pytest.mark.nightly)], ids=["short", "long"]
)
async def test_nothing_is_lost_and_no_versions_are_mixed(bench: Bench, steps: int) -> None:
    """Requests that leave, processes that end and parts that are replaced, at random.

    Rows have many widths, and some requests have hundreds of jobs.
    """
    await disturb(bench, random.Random(steps), steps=steps)


MANY_JOBS = 500


async def disturb(bench: Bench, rng: random.Random, *, steps: int) -> None:
    lost: list[BaseException] = []
    expected: set[tuple[int, int]] = set()
    versions = {"one": 1, "two": 1}
    widths: set[int] = set()
    bench.between.widths = 9

    def crash(inputs: Tensors) -> Tensors:
        widths.add(inputs["x"].shape[1])
        if rng.random() < 0.001:
            raise Crash("killed")
        return doubled(inputs)

    async def reload(name: str) -> None:
        versions[name] += 1
        write_double(bench.root, versions[name], name=name, queue=32)
        add_to_config(bench.root / name, RAGGED)
        with suppress(BackendError):  # its test, or that of the whole request, met a crash
            await bench.registry.load(name)

    for name in versions:
        await reload(name)
        bench.factory.of[name].behaviour = crash

    async def request() -> None:
        count = MANY_JOBS if rng.random() < 0.02 else rng.randint(1, 9)
        numbers = [float(n) for n in range(count)]
        # Slow machines may take minutes for many large requests at once.
        task = asyncio.create_task(bench.run(*numbers, timeout=10 * PATIENCE))
        if rng.random() < 0.2:
            for _ in range(rng.randint(0, 30)):
                await asyncio.sleep(0)
            if count == MANY_JOBS:  # it leaves at any moment between its first and its last run
                await asyncio.wait([task], timeout=rng.random() / 5)
            task.cancel()
        try:
            values, used = (await task).value
        except asyncio.CancelledError:
            return
        except (WorkerCrashed, Overloaded):
            return  # of the process that ended; or refused before any work
        except PaddlepoolError as error:
            if CRASH_LOOP not in error.message:  # six crashes of a version within a minute
                lost.append(error)
            return
        assert values == [4 * number for number in numbers]
        expected.add(used)

    pending: set[asyncio.Task[None]] = set()
    for step in range(steps):
        disturbing = step % 50 == 49
        coroutine = reload(rng.choice(("one", "two"))) if disturbing else request()
        pending.add(asyncio.create_task(coroutine))
        while len(pending) > rng.randint(1, 12):
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.gather(*pending)
    assert lost == []
    assert bench.leases() == AT_REST
    for model in bench.registry.served():
        assert [(group.queue_depth, group.inflight) for group in model.groups()] == [(0, 0)] * 2
    bench.factory.of["one"].behaviour = bench.factory.of["two"].behaviour = doubled
    await eventually(lambda: bench.registry.ready("chain"))
    assert widths == {4, 8, 12}
    served = tuple(model.version for model in bench.registry.served())
    values, used = (await bench.run(*[1] * MANY_JOBS)).value
    assert (values, used) == ([4] * MANY_JOBS, served)
    sets = sorted(expected | {served})  # one follows another, so none mixes an old with a new one
    assert len(sets) > 2
    for before, after in pairwise(sets):
        assert before[0] <= after[0]
        assert before[1] <= after[1]
