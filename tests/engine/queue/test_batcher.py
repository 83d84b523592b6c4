"""Admission, deadlines, cancellation and shedding in front of the instances of a group."""

import asyncio
import contextlib
import gc
import math
import time
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from paddlepool.contracts.errors import DeadlineExceeded, ModelNotReady, Overloaded
from paddlepool.contracts.tensors import shape_key
from paddlepool.engine.queue.admission import Reservation
from paddlepool.engine.queue.batcher import SMALL_SECONDS, Batcher
from paddlepool.engine.queue.job import Batch, Job
from paddlepool.engine.queue.shape_queues import URGENT
from tests.engine.fakes import ManualClock, Sleeper, calling, eventually, infer_result


class RecordingConsumer:
    """An instance that runs its batches when the test says so."""

    def __init__(self, batcher: Batcher) -> None:
        self._batcher = batcher
        self.batches: list[Batch] = []
        self.dead = self.room = False

    def healthy(self) -> bool:
        if self.dead:
            self._batcher.leave(self)
        return not self.dead

    def has_room(self) -> bool:
        return self.room

    def execute(self, batch: Batch) -> None:
        self.batches.append(batch)


class Bench:
    """A batcher with its clock, its rejections, and consumers that have just ended a run: they
    receive their next batch when they are offered again."""

    def __init__(self, clock: Any, live: int = 1, **options: Any) -> None:
        self.clock = clock
        self.rejections: Counter[str] = Counter()
        options = {"max_rows": 1, "max_delay": 0.0, "max_queue": 16} | options
        self.batcher = Batcher(
            clock=clock, on_rejected=lambda reason: self.rejections.update([reason]), **options
        )
        self.consumers = [RecordingConsumer(self.batcher) for _ in range(live)]

    async def run_once(self) -> None:
        """Give each consumer a full batch, and end it."""
        for consumer in self.consumers:
            self.batcher.join(consumer)
            full = self.batcher.max_rows
            self.batcher.submit(*[self.job(priority=URGENT) for _ in range(full)])
            await asyncio.sleep(0)
            self.batcher.finished(consumer.batches.pop(), None)

    def job(self, *, timeout: float = 60.0, **options: Any) -> Job:
        now, inputs = self.clock(), {"x": np.zeros((1, 1), np.float32)}
        options = {"priority": 0, "deadline": now + timeout, "enqueued": now} | options
        return Job(inputs=inputs, rows=1, key=shape_key(inputs), **options)

    def submit(self, **options: Any) -> Job:
        job = self.job(**options)
        self.batcher.submit(job)
        return job

    def fill(self, count: int, **options: Any) -> list[Job]:
        return [self.submit(**options) for _ in range(count)]

    def reserve(self, timeout: float = 60.0) -> Reservation:
        return self.batcher.reserve(self.clock() + timeout)

    async def cancel(self, *jobs: Job) -> None:
        for job in jobs:
            assert job.future.cancel()
        await asyncio.sleep(0)

    async def expire(self, job: Job) -> None:
        job.fail(DeadlineExceeded("too late"))
        await asyncio.sleep(0)

    def offer_all(self) -> None:
        for consumer in self.consumers:
            self.batcher.offer(consumer)

    def take(self, number: int = 0) -> Batch:
        """The batch that the consumer receives when it is free again."""
        consumer = self.consumers[number]
        had = len(consumer.batches)
        self.batcher.offer(consumer)
        [batch] = consumer.batches[had:]
        return batch

    def expect(self, seconds: float) -> None:
        """Have a run take so long, by what was observed."""
        self.batcher.record_run(self.job().key, seconds)


Build = Callable[..., Awaitable[Bench]]


@pytest.fixture
async def build() -> AsyncIterator[Build]:
    """`await build(clock, **options)`; by a clock of its own the test says how late it is."""
    built: list[Bench] = []

    async def build(clock: Callable[[], float] | None = None, **options: Any) -> Bench:
        built.append(Bench(clock or ManualClock(), **options))
        await built[-1].run_once()
        return built[-1]

    yield build
    for bench in built:
        bench.batcher.close(ModelNotReady("the test is over"))


@pytest.fixture
async def bench(build: Build) -> Bench:
    return await build()


async def test_the_queue_is_bounded(bench: Bench) -> None:
    bench.expect(0.25)
    bench.fill(16)
    with pytest.raises(Overloaded) as refused:
        bench.submit()
    assert refused.value.limit == 16
    assert refused.value.retry_after == pytest.approx(16 * 0.25)
    assert bench.rejections == {"queue_full": 1}


async def test_a_full_queue_has_a_place_for_each_caller_who_has_none(bench: Bench) -> None:
    bench.expect(1.0)
    bench.submit(caller="flood")
    bench.take()
    bench.fill(16, caller="flood")
    with pytest.raises(Overloaded):
        bench.submit(caller="flood")
    quiet = bench.submit(caller="quiet", timeout=4.0)
    with pytest.raises(Overloaded):
        bench.submit(caller="quiet")
    turns = [job for _ in range(2) for job in bench.take().jobs]
    assert quiet in turns
    for number in range(17):
        bench.submit(caller=f"other {number}")
    with pytest.raises(Overloaded) as refused:
        bench.submit(caller="one more")
    assert refused.value.limit == 32


async def test_a_reservation_belongs_to_its_caller(bench: Bench) -> None:
    """A flood of requests that are still being made leaves others their place, too."""
    bench.expect(1.0)
    for caller, places, timeout in (("flood", 16, 60.0), ("quiet", 1, 3.0)):
        with calling(caller):
            for _ in range(places):
                bench.reserve(timeout)
            with pytest.raises(Overloaded):
                bench.reserve()


async def test_what_cannot_finish_in_time_is_refused_at_once(bench: Bench) -> None:
    """Runs of 1 s and a deadline of 2 s: one job may run and one may wait, the third may not."""
    bench.expect(1.0)
    bench.submit(timeout=2.0)
    bench.take()
    bench.submit(timeout=2.0)
    began = time.monotonic()
    with pytest.raises(Overloaded, match=r"needs about 3\.00 s, the deadline leaves 2\.00 s"):
        bench.submit(timeout=2.0)
    assert time.monotonic() - began < 1.0, "it waited for a run"
    assert bench.rejections == {"deadline": 1}


async def test_what_is_still_being_made_takes_its_turn(bench: Bench) -> None:
    """Runs of 1 s: behind a running job and three places a job needs 5 s, with a place 2 s."""
    bench.expect(1.0)
    bench.submit()
    bench.take()
    held = [bench.reserve() for _ in range(3)]
    for enter in (bench.reserve, lambda timeout: bench.submit(timeout=timeout)):
        with pytest.raises(Overloaded, match=r"needs about 5\.00 s, the deadline leaves 4\.90 s"):
            enter(4.9)
    held.append(bench.reserve(5.1))
    bench.batcher.submit(bench.job(timeout=2.1), reservation=held.pop())
    for reservation in held:
        reservation.release()
    bench.reserve(3.1)
    assert bench.rejections == {"deadline": 2}


async def test_a_place_at_once_is_given_whatever_the_estimate(bench: Bench) -> None:
    """A wrong estimate must not refuse everyone for ever: an idle instance takes the job."""
    bench.expect(1000.0)
    bench.reserve(0.1).release()
    job = bench.submit(timeout=1.0)
    assert bench.take().jobs == (job,)


async def test_places_and_jobs_share_the_limit_of_the_queue(bench: Bench) -> None:
    jobs = bench.fill(8, priority=1)
    for _ in range(9):
        bench.reserve()
    await bench.cancel(*jobs)
    bench.fill(7)
    with pytest.raises(Overloaded, match="16 jobs wait, limit 16"):
        bench.reserve()


async def test_a_reserved_place_is_nobody_elses(bench: Bench) -> None:
    reservation = bench.reserve()
    bench.fill(15)
    with pytest.raises(Overloaded, match="16 jobs wait, limit 16"):
        bench.submit()
    job, other = bench.job(), bench.job()
    with pytest.raises(Overloaded):
        bench.batcher.submit(other)
    bench.batcher.submit(job, reservation=reservation)
    assert bench.batcher.depth == 16
    reservation.release()
    with pytest.raises(Overloaded):
        bench.batcher.submit(other, reservation=reservation)


async def test_a_reserved_job_is_not_refused_for_those_who_came_later(bench: Bench) -> None:
    """It was promised its time; they have later deadlines and would not be refused themselves."""
    bench.expect(1.0)
    reservation = bench.reserve(3.5)
    bench.fill(5, timeout=100)
    bench.batcher.submit(bench.job(timeout=3.5), reservation=reservation)
    assert bench.batcher.depth == 6
    with pytest.raises(Overloaded, match=r"the deadline leaves 3\.50 s"):
        bench.submit(timeout=3.5)


async def test_low_priority_jobs_are_not_promised_twice(bench: Bench) -> None:
    """The reservation counts on the job that would make room; a normal job may not."""
    low = bench.submit(priority=1)
    bench.fill(15)
    reservation = bench.reserve()
    with pytest.raises(Overloaded):
        bench.submit()
    bench.batcher.submit(bench.job(), reservation=reservation)
    with pytest.raises(Overloaded):
        await low.future
    assert bench.batcher.depth == 16
    assert bench.rejections == {"queue_full": 1, "shed": 1}


async def test_urgent_work_is_never_refused_and_takes_nobodys_place(bench: Bench) -> None:
    bench.expect(100.0)
    jobs = [bench.submit(timeout=math.inf, priority=number % 2) for number in range(16)]
    urgent = bench.fill(3, timeout=1.0, priority=URGENT)
    assert bench.batcher.depth == 19
    assert [bench.take().jobs[0] for _ in range(3)] == urgent
    assert not any(job.future.done() for job in jobs)
    assert bench.rejections == {}


async def test_two_instances_halve_the_wait(build: Build) -> None:
    bench = await build(live=2)
    bench.expect(1.0)
    bench.fill(4, timeout=60.0)
    bench.submit(timeout=3.1)
    with pytest.raises(Overloaded):
        bench.submit(timeout=3.1)


@pytest.mark.parametrize("running", [False, True], ids=["queued", "running"])
async def test_a_deadline_fires_on_time(build: Build, running: bool) -> None:
    """Within 0.2 s, also while every instance is busy; the late result of a run goes nowhere."""
    bench = await build(time.monotonic)
    job = bench.submit(timeout=0.5)
    if running:
        batch = bench.take()
    sleeper = Sleeper(job.deadline)
    with pytest.raises(DeadlineExceeded):
        await job.future
    late = time.monotonic() - job.deadline
    assert 0.0 <= late < 0.2 + sleeper.late()
    if running:
        bench.batcher.finished(batch, 0.3)
    else:
        assert bench.rejections == {"expired": 1}
    assert bench.batcher.depth == 0


async def test_an_earlier_deadline_is_not_hidden_by_a_later_one(build: Build) -> None:
    bench = await build(time.monotonic)
    later, sooner = bench.submit(timeout=1.5), bench.submit(timeout=0.5)
    with pytest.raises(DeadlineExceeded):
        await sooner.future
    assert not later.future.done() or time.monotonic() >= later.deadline
    with pytest.raises(DeadlineExceeded):
        await later.future


async def test_a_job_past_its_deadline_never_starts(bench: Bench) -> None:
    with pytest.raises(DeadlineExceeded):
        bench.submit(timeout=0.0)
    assert bench.batcher.depth == 0
    late, good = bench.submit(timeout=1.0), bench.submit(timeout=60.0)
    bench.clock.advance(2.0)
    assert bench.take().jobs == (good,)
    with pytest.raises(DeadlineExceeded):
        await late.future


async def test_a_cancelled_job_leaves_the_queue_at_once(bench: Bench) -> None:
    gone, good = bench.submit(), bench.submit()
    await bench.cancel(gone)
    assert bench.batcher.depth == 1
    assert bench.rejections == {"cancelled": 1}
    assert bench.take().jobs == (good,)


@pytest.mark.parametrize("dispatched", [True, False])
async def test_a_job_that_its_deadline_cancels_has_expired(bench: Bench, dispatched: bool) -> None:
    """The timer of its request may come before that of the queue."""
    late, good = bench.submit(timeout=1.0), bench.submit(timeout=60.0)
    bench.clock.advance(1.0)
    assert late.future.cancel()
    if dispatched:
        assert bench.take().jobs == (good,)
    await asyncio.sleep(0)
    assert bench.rejections == {"expired": 1}


async def test_a_job_that_runs_may_be_cancelled(build: Build) -> None:
    """It has left the queue, so nothing is counted; its neighbours in the batch notice nothing."""
    bench = await build(max_rows=4)
    jobs = bench.fill(3)
    batch = bench.take()
    await bench.cancel(jobs[1])
    assert batch.jobs == tuple(jobs)
    for job in (jobs[0], jobs[2]):
        job.future.set_result(infer_result())
    bench.batcher.finished(batch, 0.1)
    assert bench.batcher.idle
    assert bench.rejections == {}


async def test_jobs_of_one_request_are_queued_together_or_not_at_all(bench: Bench) -> None:
    low = bench.fill(2, priority=1)
    bench.fill(12)
    with pytest.raises(Overloaded) as refused:
        bench.batcher.submit(*[bench.job() for _ in range(5)])
    assert (refused.value.limit, refused.value.received) == (16, 17)
    assert bench.batcher.depth == 14
    assert bench.rejections == {"queue_full": 1}
    assert not any(job.future.done() for job in low)
    assert [bench.take().jobs[0] for _ in range(14)][-2:] == low


async def test_a_job_that_follows_an_ended_one_of_its_request_finds_room(bench: Bench) -> None:
    """Its request was admitted, and others have taken the place; only its deadline counts."""
    for number in range(16):
        bench.submit(caller=str(number))
    with pytest.raises(Overloaded):
        bench.submit(caller="0")
    bench.batcher.submit(bench.job(), following=True)
    assert bench.batcher.depth == 17
    with pytest.raises(DeadlineExceeded):
        bench.batcher.submit(bench.job(timeout=0.0), following=True)


@pytest.mark.parametrize(
    ("small", "passed", "early"),
    [
        pytest.param(False, 0.0, True, id="alone"),
        pytest.param(True, SMALL_SECONDS - 0.01, False, id="beside small requests"),
        pytest.param(True, SMALL_SECONDS + 0.01, True, id="when they have ended"),
    ],
)
async def test_a_large_request_keeps_no_instance_for_two_runs(
    build: Build, small: bool, passed: float, early: bool
) -> None:
    """If small requests come: they would wait for both."""
    clock = ManualClock()
    bench = await build(clock)
    clock.advance(SMALL_SECONDS)  # since the runs of build()
    bench.expect(0.01)
    if small:
        bench.submit()
        bench.take()
    clock.advance(passed)
    bench.consumers[0].room = True
    bench.submit(large=True)
    assert bench.batcher.depth == (0 if early else 1)


@pytest.mark.parametrize(("passed", "rows"), [(0.0, 2), (SMALL_SECONDS + 0.01, 4)])
async def test_runs_of_a_large_request_are_shorter_beside_small_ones(
    build: Build, passed: float, rows: int
) -> None:
    """The next small request waits for the run that is under way."""
    clock = ManualClock()
    bench = await build(clock, max_rows=4)
    bench.submit()
    assert len(bench.take().jobs) == 1
    clock.advance(passed)
    bench.fill(4, large=True)
    assert [len(bench.take().jobs) for _ in range(4 // rows)] == [rows] * (4 // rows)


async def test_a_refused_request_moves_nobodys_turn(bench: Bench) -> None:
    """Neither its caller's nor that of jobs of lower priority, which would have been dropped."""
    low = bench.fill(2, priority=1, caller="low")
    flood = bench.fill(14, caller="flood")
    for _ in range(5):
        with pytest.raises(Overloaded):
            bench.batcher.submit(*[bench.job(caller="many") for _ in range(3)])
    await bench.cancel(flood.pop(), flood.pop())
    many = bench.submit(caller="many")
    other = bench.submit(priority=1, caller="other")
    turns = [bench.take().jobs[0] for _ in range(bench.batcher.depth)]
    assert turns == [flood[0], many, *flood[1:], low[0], other, low[1]]


async def test_an_unhealthy_instance_takes_nothing(build: Build) -> None:
    bench = await build(live=2)
    first, second = bench.consumers
    bench.offer_all()
    second.dead = True  # the one that would be asked first
    jobs = bench.fill(2)
    assert (first.batches[-1].jobs, second.batches) == ((jobs[0],), [])
    assert bench.batcher.live == 1
    assert bench.take().jobs == (jobs[1],)


async def test_the_instance_that_ran_last_runs_next(build: Build) -> None:
    """Its memory is warm."""
    bench = await build(live=2)
    bench.offer_all()
    for _ in range(3):
        bench.submit()
        bench.batcher.offer(bench.consumers[1])
    assert [len(consumer.batches) for consumer in bench.consumers] == [0, 3]


async def test_requests_that_arrive_together_share_a_batch(build: Build) -> None:
    """Though an instance is free when the first of them comes."""
    bench = await build(max_rows=4)
    [consumer] = bench.consumers
    bench.batcher.offer(consumer)
    jobs = bench.fill(3)
    await asyncio.sleep(0)
    assert [batch.jobs for batch in consumer.batches] == [tuple(jobs)]


async def test_what_an_idle_instance_will_take_is_not_refused(build: Build) -> None:
    """Neither for places, which jobs that arrive together leave at once, nor for the estimate."""
    for places, seconds, accepted in ((1, 0.1, 3), (16, 1.0, 4)):
        bench = await build(live=2, max_rows=2, max_queue=places)
        bench.offer_all()
        bench.expect(seconds)
        for _ in range(accepted):
            bench.submit(timeout=1.2)
        with pytest.raises(Overloaded):
            bench.submit(timeout=1.2)


async def test_who_has_left_is_handed_nothing(build: Build) -> None:
    bench = await build(live=2)
    first, second = bench.consumers
    bench.batcher.offer(first)
    for consumer in (first, second, first):
        bench.batcher.leave(consumer)
    bench.offer_all()
    job = bench.submit()
    assert (bench.batcher.live, bench.batcher.depth) == (0, 1)
    bench.batcher.join(second)
    assert [batch.jobs for batch in second.batches] == [(job,)]
    assert first.batches == []


async def test_a_batch_is_handed_over_when_its_delay_is_over(build: Build) -> None:
    """An idle instance waits for company that long, and nobody need come."""
    bench = await build(time.monotonic, max_rows=4, max_delay=0.2)
    [consumer] = bench.consumers
    bench.batcher.offer(consumer)
    jobs = bench.fill(3)
    assert not consumer.batches
    await eventually(lambda: bool(consumer.batches))
    assert consumer.batches[0].jobs == tuple(jobs)
    assert consumer.batches[0].started >= jobs[0].enqueued + 0.2


async def test_the_next_batch_is_left_to_an_idle_instance(build: Build) -> None:
    """None lies ready behind a run while another instance would take it at once."""
    bench = await build(live=2)
    busy, idle = bench.consumers
    busy.room = True
    bench.expect(0.01)
    bench.batcher.offer(idle)
    jobs = bench.fill(2)
    assert [batch.jobs for batch in idle.batches] == [(jobs[0],)]
    assert [batch.jobs for batch in busy.batches] == [(jobs[1],)]
    busy.room = False
    bench.submit()
    assert bench.batcher.depth == 1


async def test_what_comes_back_goes_to_whoever_is_free_first(build: Build) -> None:
    """In its turn, without waiting until the lost predictor is replaced."""
    bench = await build(live=2)
    jobs = bench.fill(3)
    first, second = bench.take(), bench.take()
    bench.batcher.requeue(first, second)
    assert bench.batcher.inflight == 2
    *_, third = batches = [bench.take() for _ in range(3)]
    assert [batch.jobs for batch in batches] == [(job,) for job in jobs]
    idle = bench.consumers[1]
    bench.batcher.offer(idle)
    bench.batcher.requeue(third)
    assert [batch.jobs for batch in idle.batches] == [(jobs[2],)]


async def test_what_comes_back_is_not_sent_to_a_busy_instance(build: Build) -> None:
    """Nor does a queued batch that may be sent there overtake it."""
    bench = await build(live=1)
    busy = bench.consumers[0]
    bench.expect(0.01)
    returned, running, queued = (bench.submit() for _ in range(3))
    first, second = bench.take(), bench.take()
    assert (first.jobs, second.jobs) == ((returned,), (running,))
    busy.room = True
    bench.batcher.requeue(first)
    assert busy.batches == [first, second]
    bench.batcher.offer(busy)
    assert [batch.jobs for batch in busy.batches[2:]] == [(returned,), (queued,)]


async def test_nobody_is_given_a_job_that_is_over(build: Build) -> None:
    bench = await build(max_rows=4)
    await bench.expire(bench.submit())
    over, gone, waiting = bench.fill(3)
    batch = bench.take()
    assert batch.jobs == (over, gone, waiting)
    await bench.expire(over)
    await bench.cancel(gone)
    bench.batcher.requeue(batch)
    batch = bench.take()
    assert batch.jobs == (waiting,)
    await bench.expire(waiting)
    bench.batcher.requeue(batch)
    bench.batcher.offer(bench.consumers[0])
    assert len(bench.consumers[0].batches) == 2
    assert bench.batcher.idle


async def test_closing_fails_what_waits_and_what_comes_back(build: Build) -> None:
    bench = await build(live=2)
    early, late = bench.submit(), bench.submit()
    first, second = bench.take(), bench.take()
    waiting = bench.submit()
    bench.batcher.requeue(first)
    bench.batcher.close(ModelNotReady("over"))
    for job in (early, waiting):
        with pytest.raises(ModelNotReady):
            await job.future
    assert not late.future.done()
    bench.batcher.requeue(second)
    with pytest.raises(ModelNotReady):
        await late.future
    assert bench.batcher.inflight == 0
    bench.batcher.offer(bench.consumers[0])
    assert len(bench.consumers[0].batches) == 2
    with pytest.raises(ModelNotReady):
        bench.submit()


async def test_closing_keeps_nothing_of_those_who_waited(bench: Bench) -> None:
    """Each hears of it with an error of his own: one error would keep the frames of all."""
    jobs = bench.fill(16)
    bodies: list[weakref.ref[Any]] = []

    async def wait(job: Job) -> None:
        body = np.zeros(1)
        bodies.append(weakref.ref(body))
        await job.future

    bench.batcher.close(ModelNotReady("closing"))
    await asyncio.sleep(0)
    while jobs:
        with contextlib.suppress(ModelNotReady):
            await wait(jobs.pop())
    for _ in range(2):
        body = np.zeros(1)
        bodies.append(weakref.ref(body))
        with contextlib.suppress(ModelNotReady):
            bench.submit()
        del body
    gc.collect()
    assert [ref() for ref in bodies if ref() is not None] == []
