"""Which waiting jobs may run next."""

import math
from itertools import accumulate
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from paddlepool.contracts.tensors import shape_key
from paddlepool.engine.queue.job import Job
from paddlepool.engine.queue.shape_queues import MAX_CALLERS, ServiceTime, ShapeQueues


def job(
    *,
    width: int = 1,
    rows: int = 1,
    priority: int = 0,
    enqueued: float = 0.0,
    caller: str = "",
    large: bool = False,
) -> Job:
    inputs = {"x": np.zeros((rows, width), np.float32)}
    return Job(
        inputs=inputs,
        rows=rows,
        key=shape_key(inputs),
        priority=priority,
        deadline=math.inf,
        enqueued=enqueued,
        caller=caller,
        large=large,
        future=cast(Any, None),  # no queue looks at it, and there is no event loop
    )


def filled(*jobs: Job, max_rows: int = 4, max_delay: float = 0.0) -> ShapeQueues:
    queues = ShapeQueues(max_rows=max_rows, max_delay=max_delay)
    for queued in jobs:
        queues.add(queued)
    return queues


def order(queues: ShapeQueues) -> list[Job]:
    """In which the jobs run, one at a time."""
    ran = []
    while queues:
        [first, *_], _ = queues.next_batch(0.0)
        queues.take(first)
        ran.append(first)
    return ran


def test_the_virtual_time_begins_again_when_nothing_waits() -> None:
    """It would grow without end, and lose its precision after 2**53 rows."""
    queues = filled(*[job(caller="flood", rows=4) for _ in range(3)])
    order(queues)
    assert [queues.start_of(caller) for caller in ("flood", "quiet")] == [0.0, 0.0]


@pytest.mark.parametrize("max_delay", [0.0, 1.0])
def test_small_requests_do_not_share_the_long_runs_of_large_ones(max_delay: float) -> None:
    """Neither of them waits for more jobs while the other does."""
    large = [job(caller="large", large=True) for _ in range(3)]
    small = [job(caller="a"), job(caller="b")]
    queues = filled(*small, *large, max_delay=max_delay)
    assert queues.next_batch(0.0)[0] == small
    for taken in small:
        queues.take(taken)
    queues.add(late := job(caller="c"))
    assert queues.next_batch(0.0)[0] == large
    for taken in large:
        queues.take(taken)
    assert queues.next_batch(1.0)[0] == [late]


def test_a_caller_with_one_job_waits_for_one_of_each_other() -> None:
    """Not for the forty that were there before it."""
    flood = [job(caller="flood") for _ in range(40)]
    queues = filled(*flood)
    for queued in flood[:5]:
        queues.take(queued)
    single = job(caller="quiet")
    queues.add(single)
    assert order(queues)[:2] in ([flood[5], single], [single, flood[5]])


def test_callers_take_turns_by_rows() -> None:
    """Whoever sends large jobs gets fewer of them; each caller's own jobs keep their order."""
    large = [job(caller="large", rows=2) for _ in range(2)]
    small = [job(caller="small") for _ in range(4)]
    assert order(filled(*large, *small)) == [large[0], *small[:2], large[1], *small[2:]]


def test_who_waited_out_a_rest_has_saved_nothing() -> None:
    first = [job(caller="a") for _ in range(6)]
    queues = filled(*first)
    for queued in first[:4]:
        queues.take(queued)
    late = [job(caller="b") for _ in range(3)]
    for queued in late:
        queues.add(queued)
    assert order(queues)[:4] == [late[0], first[4], late[1], first[5]]


def test_callers_who_come_and_go_are_forgotten() -> None:
    """Although the queue is never empty; those who wait keep the turns they have used up."""
    queues = filled(*(job(caller="flood") for _ in range(3)))
    for number in range(3 * MAX_CALLERS):
        queues.add(passing := job(caller=str(number)))
        queues.take(passing)
        assert len(queues._next_start) <= MAX_CALLERS
    assert queues.start_of("flood") == 3.0


def test_a_turn_that_has_passed_is_not_saved_up() -> None:
    """What waited behind other priorities for longer than its rows gives nobody a start."""
    waited = job(caller="a", priority=1)
    others = [job(caller="b") for _ in range(6)]
    queues = filled(waited, *others)
    for queued in others[:3]:
        queues.take(queued)
    mine = [job(caller="a") for _ in range(2)]
    for queued in mine:
        queues.add(queued)
    queues.remove(waited)
    assert order(queues) == [mine[0], others[3], mine[1], *others[4:]]


def test_the_wait_of_a_quiet_caller_is_not_the_queue() -> None:
    """One run of the flood goes before its job, and all before the flood's own next."""
    times = ServiceTime()
    times.record(job().key, 1.0)
    queues = filled(*(job(caller="flood") for _ in range(40)), max_rows=1)
    assert queues.seconds_before(0, job().key, 1, "quiet", times) == 1.0
    assert queues.seconds_before(0, job().key, 1, "flood", times) == 40.0


def test_a_lane_waits_its_delay_for_company() -> None:
    waiting = job(enqueued=10.0)
    queues = filled(waiting, max_delay=0.5)
    assert queues.next_batch(10.4) == ([], 10.5)
    assert queues.next_batch(10.5)[0] == [waiting]


def test_a_full_lane_does_not_wait_behind_an_older_one() -> None:
    older = job(width=2, enqueued=9.9)
    full = [job(width=1, enqueued=10.0) for _ in range(4)]
    assert filled(older, *full, max_delay=0.5).next_batch(10.0)[0] == full


def test_instances_that_would_stay_idle_share_what_waits() -> None:
    """What other shapes of this priority wait for is left to them, and full batches stay whole."""
    one = [job(enqueued=number) for number in range(5)]
    wide, low, large = job(width=2, enqueued=9), job(width=2, priority=1), job(rows=4)
    for waiting, free, batched in (
        (one, 0, 4), (one, 1, 4), (one, 2, 4), (one, 3, 2), (one[:4], 2, 2), (one[:1], 2, 1),
        ([*one[:4], wide], 2, 4), ([*one[:4], wide], 3, 2), ([*one[:4], low], 2, 2),
        ([*one[:3], large], 2, 3),
    ):  # fmt: skip
        assert filled(*waiting).next_batch(10.0, free=free)[0] == waiting[:batched]
    assert filled(*one, max_delay=1.0).next_batch(10.0, free=3)[0] == one[:4]


def test_the_runs_up_to_a_job_are_counted() -> None:
    """A job is not divided; how many instances share more urgent ones is not known before."""
    queues = filled(*[job(rows=3, width=width) for width in (1, 1, 1, 2)], max_rows=8)
    assert [queues.runs(0, job().key, rows) for rows in (5, 6)] == [3, 4]
    assert queues.runs(0, None, 1) == 4
    assert queues.runs(1, job().key, 1) == math.inf


def test_low_priority_waits_while_a_normal_job_waits_its_delay() -> None:
    low, normal = job(priority=1, enqueued=0.0), job(priority=0, enqueued=10.0)
    queues = filled(low, normal, max_delay=0.5)
    assert queues.next_batch(10.0) == ([], 10.5)
    queues.remove(normal)
    assert queues.next_batch(10.0)[0] == [low]


def test_the_youngest_of_the_least_urgent_is_shed_first() -> None:
    jobs = [job(priority=1), job(priority=2, width=1), job(priority=2, width=2), job(priority=0)]
    queues = filled(*jobs)
    assert queues.least_urgent(0) is jobs[2]
    assert queues.least_urgent(2) is None


@pytest.mark.parametrize(
    ("waiting", "expected"),
    [
        pytest.param([], 0.0, id="nobody"),
        pytest.param([job()] * 3, 0.0, id="room in the last run"),
        pytest.param([job()] * 4, 1.0, id="one full run"),
        pytest.param([job()] * 9, 2.0, id="two full runs and room in the third"),
        pytest.param([job(width=2)], 5.0, id="a slower shape"),
        pytest.param([job(priority=1)] * 9, 0.0, id="less urgent jobs do not count"),
    ],
)
def test_the_wait_counts_the_runs_before_a_job(waiting: list[Job], expected: float) -> None:
    times = ServiceTime()
    times.record(job(width=1).key, 1.0)
    times.record(job(width=2).key, 5.0)
    assert filled(*waiting).seconds_before(0, job().key, 1, "", times) == expected


JOBS = st.builds(job, width=st.integers(1, 3), rows=st.integers(1, 4), priority=st.integers(0, 2))
JOBS_OF_ALL = st.builds(
    job,
    width=st.integers(1, 2),
    rows=st.integers(1, 4),
    priority=st.integers(0, 1),
    caller=st.sampled_from("abc"),
)


@given(st.lists(st.tuples(JOBS_OF_ALL, st.booleans()), max_size=30))
def test_what_is_taken_out_leaves_the_others_as_if_it_had_never_come(
    jobs: list[tuple[Job, bool]],
) -> None:
    """The turns of all callers, of the same one too, and of what comes next."""
    queues = filled(*(queued for queued, _ in jobs))
    queues.remove(*(queued for queued, stays in jobs if not stays))
    others = filled(*(queued for queued, stays in jobs if stays))
    for queued in [job(caller=caller) for caller in "abc"]:
        queues.add(queued)
        others.add(queued)
    assert order(queues) == order(others)


@given(st.lists(st.one_of(JOBS, st.just("take"), st.integers(0, 20)), max_size=60))
@example([*(job() for _ in range(5)), "take"])  # one more than the rows
@example([job(width=1), job(width=2), job(width=1), "take"])
@example([job(rows=3), job(rows=2), job(rows=1), "take"])  # the small one does not overtake
def test_no_job_is_lost_doubled_or_overtaken(steps: list[Job | str | int]) -> None:
    """A batch has one shape and the highest waiting priority, and the oldest jobs that fit."""
    queues = ShapeQueues(max_rows=4, max_delay=0.0)
    waiting: list[Job] = []
    for step in steps:
        if isinstance(step, Job):
            queues.add(step)
            waiting.append(step)
        elif isinstance(step, int):
            if step < len(waiting):
                assert queues.remove(waiting[step])
                assert not queues.remove(waiting.pop(step))
        else:
            batch, _ = queues.next_batch(0.0)
            assert bool(batch) == bool(waiting)
            for batched in batch:
                assert queues.remove(batched)
            if batch:
                urgent = min(queued.priority for queued in waiting)
                head = next(queued for queued in waiting if queued.priority == urgent)
                peers = [
                    queued
                    for queued in waiting
                    if (queued.priority, queued.key) == (urgent, head.key)
                ]
                rows = accumulate(queued.rows for queued in peers)
                assert batch == [
                    queued for queued, total in zip(peers, rows, strict=True) if total <= 4
                ]
            waiting = [queued for queued in waiting if queued not in batch]
        assert len(queues) == len(waiting)
        assert set(queues) == set(waiting)
