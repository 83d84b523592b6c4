"""Two instances of a group beside each other: each engine's threads may use any core."""

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from paddlepool.contracts.errors import BackendError
from paddlepool.engine.backends.process import ProcessBackend, ProcessPredictor
from paddlepool.models.repository.config import InstanceGroup
from paddlepool.models.repository.layout import ModelRepository
from tests.engine.backends.test_process import opened
from tests.engine.fakes import PATIENCE

pytestmark = [
    pytest.mark.paddle,
    pytest.mark.nightly,  # measures a ratio of times
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores"),
]

MODEL = ModelRepository(Path(__file__).parents[3] / "model_repo").read("u2netp", 1)
"""Every run of it is 0.1 s and more of arithmetic."""
GROUPS = [
    group
    for group in MODEL.config.instance_group
    if group.threads == 1 and group.options.get("device") != "gpu"
]
"""The groups with one thread: two predictors with more threads would need more than two cores."""


@pytest.fixture
def two_cores() -> Iterator[set[int]]:
    """All that this test starts has these two."""
    before = os.sched_getaffinity(0)
    cores = set(sorted(before)[:2])
    os.sched_setaffinity(0, cores)
    try:
        yield cores
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def watched(predictors: Sequence[ProcessPredictor]) -> Iterator[list[set[int]]]:
    """The cores that each thread of theirs was seen to be allowed while they ran."""
    allowed: list[set[int]] = []
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.01):
            for predictor in predictors:
                for task in Path(f"/proc/{predictor.pid}/task").iterdir():
                    with contextlib.suppress(ProcessLookupError):
                        cores = os.sched_getaffinity(int(task.name))
                        if cores not in allowed:
                            allowed.append(cores)

    with ThreadPoolExecutor(1) as watcher:
        watching = watcher.submit(watch)
        try:
            yield allowed
        finally:
            done.set()
        watching.result()


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.name)
def test_two_instances_may_use_every_core(two_cores: set[int], group: InstanceGroup) -> None:
    """No engine pins its threads: those of the next process would be pinned to the same core."""
    test = MODEL.selftest()
    inputs = {name: array[:1] for name, array in test.inputs.items()}
    backend = ProcessBackend(nice=0)

    with contextlib.ExitStack() as stack:
        try:
            pair = [stack.enter_context(opened(MODEL.spec(group), backend)) for _ in range(2)]
        except BackendError as refusal:
            pytest.skip(f"this machine cannot run it: {refusal}")
        for instance in pair:  # in their first run libraries visit every core, to learn what it is
            instance.run(inputs, timeout=PATIENCE)
        with watched(pair) as allowed:
            for instance in pair:
                instance.run(inputs, timeout=PATIENCE)
        assert allowed == [two_cores]
