"""What a request keeps of its runs."""

import weakref
from collections.abc import Callable

import numpy as np
import pytest

from paddlepool.contracts.ports import InferResult
from paddlepool.contracts.tensors import Tensors
from paddlepool.engine.registry.parts import CheckedJob
from paddlepool.engine.registry.request_context import CompletedRuns

NAME = "x"


def tensors(value: float) -> Tensors:
    return {NAME: np.array([[value]], np.float32)}


def result_of(value: float) -> InferResult:
    return InferResult(
        outputs=tensors(2 * value),
        model="double",
        version=1,
        group="main",
        instance=0,
        enqueued=0.0,
        queue_seconds=0.0,
        infer_seconds=1.0,
        batch_rows=1,
    )


def runs_of(calls: int, draw: Callable[[], float]) -> CompletedRuns:
    """Call n has the runs 2n and 2n + 1."""
    completed = CompletedRuns()
    for call in range(calls):
        values = (2 * call, 2 * call + 1)
        runs = [CheckedJob(tensors(value), 1, ()) for value in values]
        completed.add(runs, [result_of(value) for value in values], draw)
    return completed


@pytest.mark.parametrize(("draw", "run"), [(0.0, 18), (0.06, 19), (0.49, 3), (0.99, 1)])
def test_one_run_of_a_request_is_drawn_with_its_outputs(draw: float, run: int) -> None:
    """Of ten calls with two runs each: the number of a run of the last call that it hits."""
    completed = runs_of(10, lambda: draw)
    assert (completed.inputs[NAME].item(), completed.outputs[NAME].item()) == (run, 2 * run)
    assert completed.rows == [1] * 20


def test_every_run_is_drawn_equally_often() -> None:
    draw = np.random.default_rng(1).random
    drawn = [runs_of(3, draw).inputs[NAME].item() for _ in range(3000)]
    _, counts = np.unique(drawn, return_counts=True)
    assert len(counts) == 6
    assert counts.min() > 420  # 500 are expected, with a standard deviation of 20


def test_the_tensors_of_other_runs_are_freed_before_the_request_ends() -> None:
    completed = CompletedRuns()
    arrays = []
    for value in range(50):
        run, result = CheckedJob(tensors(value), 1, ()), result_of(value)
        arrays += [weakref.ref(run.inputs[NAME]), weakref.ref(result.outputs[NAME])]
        completed.add([run], [result])
        del run, result
    assert sum(array() is not None for array in arrays) == 2
    assert len(completed.results) == 50
