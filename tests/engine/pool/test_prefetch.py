"""The next batch is handed over before a run has ended, and is not lost with that run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from app.contracts.errors import BackendError, DeadlineExceeded, ModelNotReady, WorkerCrashed
from app.contracts.ports import InferResult
from app.contracts.reasons import Restart
from app.contracts.tensors import Tensors
from app.engine.pool.instance import PREFETCH_RUN_SECONDS
from tests.engine.fakes import (
    PATIENCE,
    Crash,
    FakeFactory,
    Gate,
    RecordingObserver,
    doubled,
    row,
    served_double,
    write_double,
)

Values = list[float]


class Served:
    """Model `double` whose runs take longer than usual, so that each has the next behind it."""

    def __init__(self, root: Path, *, usual: Callable[[Tensors], Tensors] = doubled) -> None:
        self.factory = FakeFactory(behaviour=usual, slow=True)
        self.observer = RecordingObserver()
        write_double(root, batch=2)
        self.model = served_double(root, self.factory, self.observer)
        self.model.start()
        self.submit(0).result(timeout=PATIENCE)  # the first tells how long a run takes
        self.began: list[tuple[Values, int]] = []
        """Of each run its values, and how many batches lay ready behind it."""

    def behave(self, *, crashes: float | None = None, refuses: float | None = None) -> Gate:
        """Runs wait at the gate from now on, and one with such a value ends badly."""

        def run(inputs: Tensors) -> Tensors:
            values = inputs["x"].ravel().tolist()  # type: ignore[union-attr]
            self.began.append((values, len(self.factory.opened[-1].under_way)))
            if crashes in values:
                raise Crash("gone")
            if refuses in values:
                raise BackendError("bad value")
            return doubled(inputs)

        self.factory.behaviour = gate = Gate(run)
        return gate

    def submit(self, value: float) -> Future[InferResult]:
        return self.model.submit(row(value), deadline=time.monotonic() + PATIENCE)

    def pair(self, *values: float) -> list[Future[InferResult]]:
        """Jobs that enter the queue together, for the same batch."""
        deadline = time.monotonic() + PATIENCE
        return self.model.submit_all([row(value) for value in values], deadline=deadline)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path)
    yield served
    served.factory.let_go()
    served.model.close()


def results(futures: list[Future[InferResult]]) -> list[float]:
    return [future.result(timeout=PATIENCE).outputs["y"].item() for future in futures]


def test_the_next_batch_is_there_when_a_run_ends(served: Served) -> None:
    """One behind the run and no more; each job gets its own result, in whatever order they came."""
    gate = served.behave()
    first = served.pair(1, 2, 3, 4, 5, 6)
    gate.wait_entered()
    gate.open()
    assert results(first) == [2, 4, 6, 8, 10, 12]
    assert served.began == [([1, 2], 1), ([3, 4], 1), ([5, 6], 0)]


def test_what_comes_meanwhile_waits_for_the_end_of_the_run(served: Served) -> None:
    """The queue was empty when the batch behind it was chosen: nothing is handed over later."""
    gate = served.behave()
    first = served.submit(1)
    gate.wait_entered()
    second = served.submit(2)
    gate.open()
    assert results([first, second]) == [2, 4]
    assert served.began == [([1], 0), ([2], 0)]


def test_a_crash_costs_the_run_it_happened_in(served: Served) -> None:
    """The batch behind it had not begun: the next predictor runs it."""
    gate = served.behave(crashes=2)
    futures = served.pair(1, 2, 3, 4, 5, 6)
    gate.wait_entered()
    gate.open()
    assert all(isinstance(job.exception(timeout=PATIENCE), WorkerCrashed) for job in futures[:2])
    assert results(futures[2:]) == [6, 8, 10, 12]
    assert [values for values, _ in served.began] == [[1, 2], [3, 4], [5, 6]]
    assert (served.observer.restarts, len(served.factory.opened)) == (["crashed"], 2)


def test_a_refused_batch_is_divided_behind_the_one_under_way(served: Served) -> None:
    """Its jobs run alone after the batch that had been handed over; only the guilty one fails."""
    gate = served.behave(refuses=2)
    good, bad, third, fourth = served.pair(1, 2, 3, 4)
    gate.wait_entered()
    gate.open()
    assert isinstance(bad.exception(timeout=PATIENCE), BackendError)
    assert results([good, third, fourth]) == [2, 6, 8]
    assert [values for values, _ in served.began] == [[1, 2], [3, 4], [1], [2]]
    assert served.observer.restarts == []


def test_what_cannot_be_sent_is_kept(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A predictor found dead when its batch is sent has begun nothing: nobody loses a request."""
    predictor = served.factory.opened[0]

    def dead(inputs: Tensors) -> None:
        predictor.dead = Restart.KILLED
        raise WorkerCrashed("gone")

    monkeypatch.setattr(predictor, "send", dead)
    assert results([served.submit(4)]) == [8]
    assert served.observer.restarts == ["killed"]


def test_a_batch_that_cannot_be_written_fails_alone(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts as under way no longer, and the predictor serves on."""
    send = served.factory.opened[0].send

    def refuse(inputs: Tensors) -> None:
        if (inputs["x"] == 2).any():
            raise ValueError("too long")
        send(inputs)

    monkeypatch.setattr(served.factory.opened[0], "send", refuse)
    good, bad, *others = served.pair(1, 2, 3, 4, 5, 6)
    assert isinstance(bad.exception(timeout=PATIENCE), BackendError)
    assert results([good, *others]) == [2, 6, 8, 10, 12]
    assert results([served.submit(7)]) == [14]
    assert served.observer.restarts == []
    served.model.close()
    assert [group.inflight for group in served.model.groups()] == [0, 0]


def test_closing_settles_what_was_handed_over(served: Served) -> None:
    """A run in progress is broken off, and the jobs behind it hear of it, too."""
    gate = served.behave(crashes=1)
    futures = served.pair(1, 2, 3, 4)
    gate.wait_entered()
    closing = threading.Thread(target=served.model.close)
    closing.start()
    assert served.factory.opened[0].aborted.wait(PATIENCE)
    gate.open()
    closing.join(PATIENCE)
    assert all(isinstance(job.exception(timeout=PATIENCE), WorkerCrashed) for job in futures[:2])
    assert all(isinstance(job.exception(timeout=PATIENCE), ModelNotReady) for job in futures[2:])
    assert [values for values, _ in served.began] == [[1, 2]]


@pytest.mark.slow
def test_a_kept_job_whose_time_is_over_is_not_run(served: Served) -> None:
    """Its deadline passes while the predictor is replaced: it fails then, and never begins."""
    gate = served.behave(crashes=1)
    blocker = served.submit(0)
    gate.wait_entered()
    doomed = served.pair(1, 2)
    # Time enough to be handed over behind the doomed ones.
    hasty = served.model.submit(row(3), deadline=time.monotonic() + 1.5)
    served.factory.selftest = lambda inputs: hasty.exception(PATIENCE) and doubled(inputs)  # type: ignore[assignment, return-value]
    gate.open()
    assert results([blocker]) == [0]
    assert all(isinstance(job.exception(timeout=PATIENCE), WorkerCrashed) for job in doomed)
    assert isinstance(hasty.exception(timeout=PATIENCE), DeadlineExceeded)
    assert results([served.submit(4)]) == [8]
    assert served.began == [([0], 0), ([1, 2], 1), ([4], 0)]


def test_long_runs_have_nothing_behind_them(tmp_path: Path) -> None:
    """Where a millisecond is nothing, the queue is left to whoever is free first."""

    def slowly(inputs: Tensors) -> Tensors:
        time.sleep(1.2 * PREFETCH_RUN_SECONDS)
        return doubled(inputs)

    served = Served(tmp_path, usual=slowly)
    gate = served.behave()
    futures = served.pair(1, 2, 3, 4)
    gate.wait_entered()
    gate.open()
    assert results(futures) == [2, 4, 6, 8]
    assert served.began == [([1, 2], 0), ([3, 4], 0)]
    served.model.close()
