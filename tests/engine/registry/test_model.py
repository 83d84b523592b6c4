"""A served model: what it admits, how its instances fail, and what a failure costs the others."""

import asyncio
import errno
import shutil
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlepool.contracts.errors import (
    BackendError,
    DeadlineExceeded,
    InvalidTensor,
    ModelNotReady,
    ModelOutputInvalid,
)
from paddlepool.contracts.ports import InferResult
from paddlepool.contracts.reasons import Restart
from paddlepool.contracts.tensors import Tensors, TensorSpec
from paddlepool.engine.pool import context
from paddlepool.engine.registry.model import ServedModel
from tests.engine.fakes import (
    PATIENCE,
    Behaviour,
    Crash,
    FakeFactory,
    Gate,
    RecordingObserver,
    doubled,
    eventually,
    failing,
    row,
    served_double,
    soon,
    write_double,
)
from tests.engine.permissions import mode
from tests.model_files import add_to_config, group, write_config, write_version


class Bench:
    """Models `double` on fake predictors."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.factory, self.observer = FakeFactory(), RecordingObserver()
        self._opened: list[ServedModel] = []

    def open(self, **options: Any) -> ServedModel:
        """A model that was written, not started."""
        self._opened.append(served_double(self.root, self.factory, self.observer, **options))
        return self._opened[-1]

    def write(self, *, max_resident_bytes: int = 1 << 30, **config: Any) -> ServedModel:
        write_double(self.root, **config)
        return self.open(max_resident_bytes=max_resident_bytes)

    async def serve(self, **options: Any) -> ServedModel:
        model = self.write(**options)
        await model.start()
        return model

    async def run_together(
        self, behaviour: Behaviour, *jobs: Tensors
    ) -> list[asyncio.Future[InferResult]]:
        """Submit jobs that wait for each other behind a run, and end that run."""
        self.factory.behaviour = gate = Gate(behaviour)
        model = await self.serve(batch=4)
        model.submit(row(0), deadline=soon())
        await gate.entered()
        futures = [model.submit(job, deadline=soon()) for job in jobs]
        gate.open()
        return futures

    async def close(self) -> None:
        self.factory.open_gate()
        for model in self._opened:
            await model.close()


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    await bench.close()


async def completed(model: ServedModel, *values: float, group: str | None = None) -> list[float]:
    """The outputs of one job of these values."""
    result = await model.submit(row(*values), deadline=soon(), group=group)
    outputs: list[float] = result.outputs["y"].ravel().tolist()  # type: ignore[union-attr]
    return outputs


async def test_each_job_of_a_batch_gets_its_own_rows(bench: Bench) -> None:
    jobs = [
        {"x": np.full((rows, 1), value, np.float32)} for rows, value in ((1, 1), (2, 2), (1, 3))
    ]
    results = await asyncio.gather(*await bench.run_together(doubled, *jobs))
    assert [result.outputs["y"].ravel().tolist() for result in results] == [[2], [4, 4], [6]]
    reported = {(result.model, result.group, result.batch_rows) for result in results}
    assert reported == {("double", "main", 4)}
    assert [batch["rows"] for batch in bench.observer.batches] == [1, 4]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        pytest.param({}, "takes the inputs x; received 0 .* missing x", id="missing"),
        pytest.param({"z": np.zeros((1, 1), np.float32)}, "received 1 of which 0", id="unknown"),
        pytest.param({"x": np.zeros((1, 1), np.float64)}, "received float64", id="dtype"),
        pytest.param({"x": np.zeros((1, 1, 1), np.float32)}, r"\[1, 1, 1\]", id="rank"),
        pytest.param({"x": np.zeros((0, 1), np.float32)}, r"received .* \[0, 1\]", id="no rows"),
        pytest.param({"x": np.zeros((1, 0), np.float32)}, r"float32 of shape \[1, 0\]", id="empty"),
        pytest.param({"x": np.zeros((5, 1), np.float32)}, "5 rows in one job, limit 4", id="many"),
        pytest.param({"x": np.zeros((4097, 1), np.float32)}, "4097 rows .* limit 4096", id="far"),
        pytest.param({"x": np.full((1, 1), np.nan, np.float32)}, "contains NaN", id="NaN"),
    ],
)  # fmt: skip
async def test_unfit_tensors_are_refused_before_the_queue(
    bench: Bench, inputs: Tensors, message: str
) -> None:
    model = await bench.serve()
    bench.factory.behaviour = gate = Gate()
    with pytest.raises(InvalidTensor, match=message):
        model.submit(inputs, deadline=soon())
    assert gate.seen == []


async def test_axes_that_must_agree_are_compared_before_the_queue(bench: Bench) -> None:
    """As a text and its mask: no engine sees tensors that it might read beyond their end."""
    inputs = (TensorSpec("x", "float32", (-1, -1)), TensorSpec("mask", "float32", (-1, -1)))
    ones = {name: np.ones((1, 3), np.float32) for name in ("x", "mask")}
    directory = write_double(bench.root)
    shutil.rmtree(directory / "1")
    specs = (inputs, (TensorSpec("y", "float32", (-1, -1)),))
    write_version(directory / "1", specs=specs, inputs=ones, outputs={"y": 2 * ones["x"]})
    config = directory / "config.toml"
    config.write_text('equal_axes = [["x.1", "mask.1"]]\n' + config.read_text("utf-8"), "utf-8")
    model = bench.open()
    await model.start()
    bench.factory.behaviour = gate = Gate()
    shorter = ones | {"mask": np.ones((1, 2), np.float32)}
    with pytest.raises(InvalidTensor, match="do not go together: axis 1 of 'x' has 3"):
        model.submit(shorter, deadline=soon())
    assert gate.seen == []
    bench.factory.behaviour = doubled
    result = await model.submit(ones, deadline=soon())
    assert result.outputs["y"].tolist() == [[2, 2, 2]]


RAGGED = '[[ragged]]\ninput = "x"\naxis = 1\nstep = 64\nmax = 1024\n'


async def test_a_thousand_widths_make_a_shape_for_each_step(bench: Bench) -> None:
    """Neither a run nor the estimate of its time knows more of them."""
    add_to_config(write_double(bench.root, batch=16, queue=1000), RAGGED)
    model = bench.open()
    await model.start()
    shapes: Counter[int] = Counter()

    def counted(inputs: Tensors) -> Tensors:
        shapes[inputs["x"].shape[1]] += len(inputs["x"])
        return doubled(inputs)

    bench.factory.behaviour = counted
    futures = [model.submit(row(*range(width)), deadline=soon()) for width in range(1, 1001)]
    for width, future in enumerate(futures, start=1):
        outputs = (await future).outputs["y"]
        assert outputs[0, :width].tolist() == [2 * value for value in range(width)]
        assert not outputs[0, width:].any()
    assert shapes == dict.fromkeys(range(64, 961, 64), 64) | {1024: 40}
    assert len(bench.observer.batches) < 80
    with pytest.raises(InvalidTensor, match="axis 1 of input 'x' has size 1025, limit 1024"):
        model.submit(row(*range(1025)), deadline=soon())


async def test_the_self_test_is_run_as_it_was_sealed(bench: Bench) -> None:
    """Its outputs have the size of its own inputs, of width 3."""
    add_to_config(write_double(bench.root), RAGGED)
    widths: list[int] = []

    def selftest(inputs: Tensors) -> Tensors:
        widths.append(inputs["x"].shape[1])
        return doubled(inputs)

    bench.factory.selftest = selftest
    await bench.open().start()
    assert widths == [3]


async def test_a_fixed_first_axis_is_not_a_batch(bench: Bench) -> None:
    """A model whose first axis is fixed at 2 takes whole tensors of 2, each in a run of its own."""
    specs = (TensorSpec("x", "float32", (2, 1)),), (TensorSpec("y", "float32", (2, 1)),)
    x = np.ones((2, 1), np.float32)
    write_double(bench.root)
    write_version(bench.root / "double" / "2", specs=specs, inputs={"x": x}, outputs={"y": 2 * x})
    model = bench.open(version=2)
    await model.start()
    futures = [model.submit({"x": x * k}, deadline=soon()) for k in range(5)]
    assert {(await future).batch_rows for future in futures} == {1}
    with pytest.raises(InvalidTensor, match=r"must be float32 of shape \[2, 1\]"):
        model.submit({"x": np.ones((1, 1), np.float32)}, deadline=soon())


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf], ids=["nan", "inf", "-inf"])
async def test_a_value_that_is_no_number_fails_its_job_alone(bench: Bench, value: float) -> None:
    def spoil(inputs: Tensors) -> Tensors:
        x = inputs["x"]
        return {"y": np.where(x == 13, np.float32(value), 2 * x)}  # type: ignore[operator]

    good, bad = await bench.run_together(spoil, row(1), row(13))
    assert (await good).outputs["y"] == 2
    with pytest.raises(ModelOutputInvalid):
        await bad


async def test_outputs_that_do_not_fit_the_batch_are_an_error(bench: Bench) -> None:
    futures = await bench.run_together(
        lambda inputs: {"y": inputs["x"][: max(1, len(inputs["x"]) - 1)]}, row(5), row(7)
    )
    results = await asyncio.gather(*futures)
    assert [result.outputs["y"].tolist() for result in results] == [[[5]], [[7]]]


@pytest.mark.slow
async def test_a_result_that_comes_too_late_is_a_failure_and_nothing_else(bench: Bench) -> None:
    """Its client heard of the deadline: the run counts as one, the request not as answered."""
    model = await bench.serve()
    bench.factory.behaviour = gate = Gate()
    late = model.submit(row(1), deadline=time.monotonic() + 1.0)
    await gate.entered()
    with pytest.raises(DeadlineExceeded):
        await late
    gate.open()
    await eventually(lambda: len(bench.observer.batches) == 1)
    assert await completed(model, 2) == [4]
    total = model.statistics()
    assert (total.executions, total.success.count, total.failure.count) == (2, 1, 1)


async def test_a_predictor_that_was_stopped_is_replaced_although_it_runs_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked twice; in between somebody may have continued it."""
    model = await bench.serve()
    failures = iter(["stopped"])
    monkeypatch.setattr(bench.factory.opened[0], "failure", lambda: next(failures, None))
    await eventually(lambda: bench.observer.restarts == ["stopped"])
    assert await completed(model, 2) == [4]


async def test_a_system_without_threads_left_costs_no_instance(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = await bench.serve()
    start = threading.Thread.start
    refused = threading.Event()

    def refuse(thread: threading.Thread) -> None:
        if thread.name.endswith("opening"):
            refused.set()
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    bench.factory.opened[0].resident = 1 << 40
    for value in range(3):
        assert await completed(model, value) == [2 * value]
    assert refused.is_set()
    assert len(bench.factory.opened) == 1


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
async def test_a_crash_loop_takes_a_group_out_that_has_no_other_predictor(
    bench: Bench, count: int
) -> None:
    model = await bench.serve(count=count)
    bench.factory.refuse = BackendError("no more")
    bench.factory.opened[0].die(Restart.CRASHED)
    await eventually(lambda: len(bench.observer.restarts) == 6)
    assert bench.observer.restarts == ["crashed", *["failed"] * 5]
    if count == 2:
        assert (model.groups()[0].live, model.ready()) == (1, True)
        assert await completed(model, 1) == [2]
        return
    await eventually(lambda: model.groups()[0].reason == "its predictors keep crashing")
    assert not model.ready()
    with pytest.raises(ModelNotReady, match="keep crashing"):
        model.submit(row(1), deadline=soon())


async def test_a_large_predictor_is_replaced_without_losing_a_request(bench: Bench) -> None:
    model = await bench.serve(max_resident_bytes=100 << 20)
    opening = threading.Event()
    bench.factory.selftest = lambda inputs: opening.wait(PATIENCE) and doubled(inputs)  # type: ignore[assignment, return-value]
    bench.factory.opened[0].resident = 200 << 20
    for _ in range(20):
        assert await completed(model, 1) == [2]
    await eventually(lambda: len(bench.factory.specs) >= 2)
    assert await completed(model, 1) == [2]
    assert bench.observer.restarts == []
    opening.set()
    while not bench.observer.restarts:
        assert await completed(model, 1) == [2]
    assert bench.observer.restarts == ["memory"]
    await eventually(bench.factory.opened[0].closed.is_set)
    assert len(bench.factory.opened) == 2


async def test_an_idle_predictor_makes_way_for_its_successor(bench: Bench) -> None:
    """Without a further request: both would hold the model's memory, for as long as none comes."""
    model = await bench.serve(max_resident_bytes=100 << 20)
    assert await completed(model, 1) == [2]
    bench.factory.opened[0].resident = 200 << 20
    await eventually(lambda: bench.observer.restarts == ["memory"])
    await eventually(bench.factory.opened[0].closed.is_set)
    assert await completed(model, 1) == [2]
    assert len(bench.factory.opened) == 2


async def test_a_predictor_that_is_large_from_the_start_is_not_replaced(bench: Bench) -> None:
    model = await bench.serve(max_resident_bytes=1)
    for _ in range(5):
        assert await completed(model, 1) == [2]
    assert (len(bench.factory.opened), bench.observer.restarts) == (1, [])


async def test_a_group_on_demand_starts_with_its_first_job(bench: Bench) -> None:
    """It opens with a suspension, as a reload does; what always runs opened at full speed."""
    model = await bench.serve()
    assert [group.started for group in model.groups()] == [True, False]
    assert await completed(model, 1, group="spare") == [2]
    assert [group.ready for group in model.groups()] == [True, True]
    assert [suspension is not None for suspension in bench.factory.pauses] == [False, True]
    assert bench.factory.opened[1].suspension is None, "it was never settled"


@pytest.mark.parametrize("group", ["main", "spare"])
@pytest.mark.parametrize(
    "error", [Crash("killed"), BlockingIOError(errno.EAGAIN, "no process left")], ids=str
)
async def test_what_passes_closes_no_group(bench: Bench, group: str, error: Exception) -> None:
    """A process that was killed in its first run, or could not be started, is opened again."""
    model = bench.write()
    if group == "spare":
        await model.start()
    bench.factory.selftest = failing(lambda: error, times=1)
    if group == "main":
        await model.start()
    assert await completed(model, 1, group=group) == [2]
    assert bench.observer.restarts == ["lacking" if isinstance(error, OSError) else "failed"]


async def test_what_the_system_lacks_closes_no_group_however_long(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paddlepool.engine.pool.group.LACKING_SECONDS", 0.0)
    model = await bench.serve()
    bench.factory.refuse = OSError(errno.EMFILE, "too many open files")
    bench.factory.opened[0].die()
    await eventually(lambda: len(bench.observer.restarts) > 20)
    assert set(bench.observer.restarts[1:]) == {"lacking"}
    assert model.groups()[0].reason == "restarting"
    bench.factory.refuse = None
    assert await completed(model, 1) == [2]


async def test_a_model_that_kills_every_process_is_refused(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a crash loop nobody waits any longer: a reload goes on with the old version."""
    monkeypatch.setattr(context, "DELAYS", (0.0,) * 9)
    bench.factory.refuse = Crash("killed")
    with pytest.raises(BackendError, match="keep crashing"):
        await bench.write().start()
    assert len(bench.observer.restarts) >= 6


async def test_a_group_that_cannot_start_fails_its_jobs(bench: Bench) -> None:
    model = await bench.serve()
    bench.factory.refuse = BackendError("no")
    waiting = model.submit(row(1), deadline=soon(), group="spare")
    with pytest.raises(ModelNotReady):
        await waiting
    with pytest.raises(ModelNotReady, match="cannot start"):
        model.submit(row(1), deadline=soon(), group="spare")
    assert await completed(model, 1) == [2]


def overwrite(directory: Path) -> bytes:
    """Change the weights in place, as a copy over them does; returns what they were."""
    params = directory / "inference.pdiparams"
    before = params.read_bytes()
    params.write_bytes(before[::-1])
    return before


async def test_what_was_verified_is_what_a_later_process_opens(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A replacement that reads other weights is closed until they are as they were."""
    monkeypatch.setattr(context, "DELAYS", (0.0, 0.0, 0.0, 0.05, 0.05, 0.05, 0.05, 0.05, 0.05))
    model = await bench.serve(count=2)
    before = overwrite(bench.root / "double" / "1")
    bench.factory.opened[0].die(Restart.CRASHED)
    await eventually(lambda: len(bench.observer.restarts) >= 4)
    assert (model.groups()[0].live, await completed(model, 1)) == (1, [2])
    assert all(predictor.closed.is_set() for predictor in bench.factory.opened[2:4])
    assert "double/1: inference.pdiparams has sha256" in caplog.text
    (bench.root / "double" / "1" / "inference.pdiparams").write_bytes(before)
    await eventually(lambda: model.groups()[0].live == 2)


async def test_files_that_cannot_be_read_for_a_moment_close_no_group(bench: Bench) -> None:
    model = await bench.serve()
    with mode(bench.root / "double" / "1" / "inference.pdiparams", 0):
        waiting = model.submit(row(1), deadline=soon(), group="spare")
        await eventually(lambda: bool(bench.observer.restarts))
    assert bench.observer.restarts[0] == "lacking"
    assert await waiting
    assert model.groups()[1].ready


async def test_a_group_that_starts_later_opens_what_was_verified(bench: Bench) -> None:
    """One that its first job starts, and a shadow."""
    model = await bench.serve()
    overwrite(bench.root / "double" / "1")
    waiting = model.submit(row(1), deadline=soon(), group="spare")
    with pytest.raises(ModelNotReady):
        await waiting
    [_, spare] = model.groups()
    assert spare.reason.startswith("cannot start: changed since it was verified: double/1: ")
    with pytest.raises(BackendError, match="changed since it was verified"):
        model.open_shadow("main", bench.factory)
    assert all(predictor.closed.is_set() for predictor in bench.factory.opened[1:])
    assert await completed(model, 1) == [2]


async def test_a_wrong_self_test_keeps_a_model_from_starting(bench: Bench) -> None:
    bench.factory.selftest = lambda inputs: {"y": inputs["x"] * np.float32(2.01)}  # type: ignore[operator]
    model = bench.write()
    with pytest.raises(BackendError, match=r"'y' differs by 0\.01 from the expected values"):
        await model.start()
    await eventually(bench.factory.opened[0].closed.is_set)


async def test_a_group_without_its_program_is_listed_and_not_fatal(bench: Bench) -> None:
    model = write_double(bench.root)
    add_to_config(model, group("fast", 'program = "int8"', backend="onnxruntime"))
    served = bench.open()
    await served.start()
    assert served.ready()
    [status] = [status for status in served.groups() if status.name == "fast"]
    assert (status.program, status.ready) == ("int8", False)
    assert status.reason == "cannot start: this version has no program 'int8'"
    with pytest.raises(ModelNotReady, match="'fast': cannot start"):
        served.submit(row(1), deadline=soon(), group="fast")
    text = (model / "config.toml").read_text("utf-8")
    write_config(model, text.replace('default_group = "main"', 'default_group = "fast"'))
    unfit = bench.open()
    with pytest.raises(BackendError, match="has no program 'int8'"):
        await unfit.start()
