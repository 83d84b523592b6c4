"""Admission, deadlines, cancellation and shedding in front of the instances of a group."""

from __future__ import annotations

import contextlib
import gc
import itertools
import math
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from app.contracts.errors import DeadlineExceeded, ModelNotReady, Overloaded, TooManyInputs
from app.contracts.tensors import shape_key
from app.engine.queue.batcher import HEALTH_SECONDS, Batcher
from app.engine.queue.job import Batch, Job
from app.engine.queue.shape_queues import URGENT
from tests.engine.fakes import PATIENCE, ManualClock, Sleeper, calling, infer_result, wait_until


class Bench:
    """A batcher with its clock and its rejections."""

    def __init__(self, clock: Any, **options: Any) -> None:
        self.clock = clock
        self.rejections: Counter[str] = Counter()
        self.batcher = Batcher(
            max_rows=options.get("max_rows", 1),
            max_delay=options.get("max_delay", 0.0),
            max_queue=options.get("max_queue", 16),
            clock=clock,
            on_rejected=lambda reason: self.rejections.update([reason]),
        )
        self.batcher.add_live(options.get("live", 1))

    def job(
        self, *, timeout: float = 60.0, width: int = 1, priority: int = 0, caller: str = ""
    ) -> Job:
        inputs = {"x": np.zeros((1, width), np.float32)}
        now = self.clock()
        return Job(
            inputs=inputs,
            rows=1,
            key=shape_key(inputs),
            priority=priority,
            deadline=now + timeout,
            enqueued=now,
            caller=caller,
        )

    def submit(self, **options: Any) -> Job:
        job = self.job(**options)
        self.batcher.submit(job)
        return job

    def take(self) -> Batch:
        batch = self.batcher.take(lambda: True)
        assert batch is not None
        return batch

    @contextlib.contextmanager
    def idle_instance(self) -> Iterator[Future[Batch | None]]:
        """What an instance takes that waits for a batch by the time the block begins."""
        looked = threading.Event()

        def healthy() -> bool:
            looked.set()  # under the lock, which it gives up only to wait again
            return True

        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(self.batcher.take, healthy)
            assert looked.wait(PATIENCE)
            yield waiting

    def usual(self, seconds: float, width: int = 1) -> None:
        self.batcher.observed(self.job(width=width).key, seconds)


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench(ManualClock())
    yield bench
    bench.batcher.close(ModelNotReady("the test is over"))


def test_the_queue_is_bounded(bench: Bench) -> None:
    """The job after the last that fits is refused with the limit and a time to come back."""
    bench.usual(0.25)
    for _ in range(16):
        bench.submit()
    with pytest.raises(Overloaded) as refused:
        bench.submit()
    assert refused.value.limit == 16
    assert refused.value.retry_after == pytest.approx(16 * 0.25)
    assert bench.rejections == {"queue_full": 1}


def test_a_full_queue_has_a_place_for_each_caller_who_has_none(bench: Bench) -> None:
    """Whoever fills it is refused; others have as many places again, and their turn is soon."""
    bench.usual(1.0)
    bench.submit(caller="flood")
    bench.take()
    for _ in range(16):
        bench.submit(caller="flood")
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


def test_a_reservation_belongs_to_its_caller(bench: Bench) -> None:
    """A flood of requests that are still being made leaves others their place, too."""
    bench.usual(1.0)

    def reserve(caller: str, timeout: float = 60.0) -> None:
        with calling(caller):
            bench.batcher.reserve(bench.clock() + timeout)

    for _ in range(16):
        reserve("flood")
    with pytest.raises(Overloaded):
        reserve("flood")
    reserve("quiet", timeout=3.0)
    with pytest.raises(Overloaded):
        reserve("quiet")


def test_what_cannot_finish_in_time_is_refused_at_once(bench: Bench) -> None:
    """Runs of 1 s and a deadline of 2 s: one job may run and one may wait, the third may not."""
    bench.usual(1.0)
    bench.submit(timeout=2.0)
    bench.take()
    bench.submit(timeout=2.0)
    began = time.monotonic()
    with pytest.raises(Overloaded, match=r"needs about 3\.00 s, the deadline leaves 2\.00 s"):
        bench.submit(timeout=2.0)
    assert time.monotonic() - began < 1.0, "it waited for a run"
    assert bench.rejections == {"deadline": 1}


def test_what_is_still_being_made_takes_its_turn(bench: Bench) -> None:
    """Runs of a second: behind one that runs and three places, a job needs five."""
    bench.usual(1.0)
    bench.submit()
    bench.take()
    now = bench.clock()
    held = [bench.batcher.reserve(now + 60) for _ in range(3)]
    with pytest.raises(Overloaded, match=r"needs about 5\.00 s, the deadline leaves 4\.90 s"):
        bench.batcher.reserve(now + 4.9)
    held.append(bench.batcher.reserve(now + 5.1))
    for reservation in held:
        bench.batcher.release(reservation)
    bench.batcher.reserve(now + 2.1)
    assert bench.rejections == {"deadline": 1}


def test_a_place_at_once_is_given_whatever_the_estimate(bench: Bench) -> None:
    """A wrong estimate must not refuse everyone for ever."""
    bench.usual(1000.0)
    bench.batcher.reserve(bench.clock() + 0.1)


def test_places_and_jobs_share_the_limit_of_the_queue(bench: Bench) -> None:
    """Sixteen together; jobs of low priority would make room."""
    jobs = [bench.submit(priority=1) for _ in range(8)]
    for _ in range(9):
        bench.batcher.reserve(bench.clock() + 60)
    for job in jobs:
        job.future.cancel()
    for _ in range(7):
        bench.submit()
    with pytest.raises(Overloaded, match="16 jobs wait, limit 16"):
        bench.batcher.reserve(bench.clock() + 60)


def test_a_reserved_place_is_nobody_elses(bench: Bench) -> None:
    """Whoever else fills the queue meanwhile: the job that was being made finds its place, and the
    place is taken once."""
    reservation = bench.batcher.reserve(bench.clock() + 60)
    for _ in range(15):
        bench.submit()
    with pytest.raises(Overloaded, match="16 jobs wait, limit 16"):
        bench.submit()
    job, other = bench.job(), bench.job()
    with pytest.raises(Overloaded):
        bench.batcher.submit(other)
    bench.batcher.submit(job, reservation=reservation)
    assert bench.batcher.depth == 16
    bench.batcher.release(reservation)
    with pytest.raises(Overloaded):
        bench.batcher.submit(other, reservation=reservation)


def test_a_reserved_job_is_not_refused_for_those_who_came_later(bench: Bench) -> None:
    """It was promised its time; they have later deadlines and would not be refused themselves."""
    bench.usual(1.0)
    reservation = bench.batcher.reserve(bench.clock() + 3.5)
    for _ in range(5):
        bench.submit(timeout=100)
    bench.batcher.submit(bench.job(timeout=3.5), reservation=reservation)
    assert bench.batcher.depth == 6
    with pytest.raises(Overloaded, match=r"the deadline leaves 3\.50 s"):
        bench.submit(timeout=3.5)


def test_low_priority_jobs_are_not_promised_twice(bench: Bench) -> None:
    """The one job that would make room is counted on by the reservation, not by a normal job."""
    low = bench.submit(priority=1)
    for _ in range(15):
        bench.submit()
    reservation = bench.batcher.reserve(bench.clock() + 60)
    with pytest.raises(Overloaded):
        bench.submit()
    bench.batcher.submit(bench.job(), reservation=reservation)
    assert isinstance(low.future.exception(timeout=PATIENCE), Overloaded)
    assert bench.batcher.depth == 16


def test_a_reserved_job_waits_for_the_queue_and_others_also_for_the_reservations(
    bench: Bench,
) -> None:
    """Runs of a second: with three reservations and one job before it, another job needs five."""
    bench.usual(1.0)
    held = [bench.batcher.reserve(bench.clock() + 60) for _ in range(3)]
    bench.submit()
    with pytest.raises(Overloaded, match=r"needs about 5\.00 s"):
        bench.submit(timeout=4.9)
    bench.batcher.submit(bench.job(timeout=2.1), reservation=held[0])


def test_urgent_work_is_never_refused_and_takes_nobodys_place(bench: Bench) -> None:
    """It goes first, does not count against the limit, and sheds nobody."""
    bench.usual(100.0)
    jobs = [bench.submit(timeout=math.inf, priority=number % 2) for number in range(16)]
    urgent = [bench.submit(timeout=1.0, priority=URGENT) for _ in range(3)]
    assert bench.batcher.depth == 19
    assert [bench.take().jobs[0] for _ in range(3)] == urgent
    assert not any(job.future.done() for job in jobs)
    assert bench.rejections == {}


def test_two_instances_halve_the_wait() -> None:
    """What one instance could not do in time, two can."""
    bench = Bench(ManualClock(), live=2)
    bench.usual(1.0)
    for _ in range(4):
        bench.submit(timeout=60.0)
    bench.submit(timeout=3.1)
    with pytest.raises(Overloaded):
        bench.submit(timeout=3.1)


def test_a_job_that_would_run_at_once_is_admitted_whatever_the_estimate(bench: Bench) -> None:
    """One slow run must not refuse everyone for ever: an idle instance takes the job."""
    bench.usual(30.0)
    job = bench.submit(timeout=1.0)
    assert bench.take().jobs == (job,)


def test_a_deadline_in_the_past_is_refused(bench: Bench) -> None:
    """Nothing is queued for a request whose time has passed."""
    with pytest.raises(DeadlineExceeded):
        bench.submit(timeout=0.0)
    assert bench.batcher.depth == 0


def test_a_deadline_fires_on_time_while_every_instance_is_busy() -> None:
    """Queued work fails within 0.2 s of its deadline although nobody takes it."""
    bench = Bench(time.monotonic)
    job = bench.submit(timeout=0.5)
    sleeper = Sleeper(job.deadline)
    with pytest.raises(DeadlineExceeded):
        job.future.result(timeout=PATIENCE)
    late = time.monotonic() - job.deadline
    assert 0.0 <= late < 0.2 + sleeper.late()
    assert bench.rejections == {"expired": 1}
    assert bench.batcher.depth == 0


def test_a_deadline_fires_on_time_while_the_job_runs() -> None:
    """The client is answered at its deadline; the run may go on, its late result goes nowhere."""
    bench = Bench(time.monotonic)
    job = bench.submit(timeout=0.5)
    batch = bench.take()
    sleeper = Sleeper(job.deadline)
    with pytest.raises(DeadlineExceeded):
        job.future.result(timeout=PATIENCE)
    late = time.monotonic() - job.deadline
    assert 0.0 <= late < 0.2 + sleeper.late()
    assert not job.claim()
    bench.batcher.finished(batch, 0.3)
    assert isinstance(job.future.exception(), DeadlineExceeded)


def test_an_earlier_deadline_is_not_hidden_by_a_later_one() -> None:
    """The second job's deadline comes first and fires first."""
    bench = Bench(time.monotonic)
    later = bench.submit(timeout=30.0)
    threading.Event().wait(0.05)  # until the reaper has gone to sleep for 30 s
    sooner = bench.submit(timeout=0.5)
    with pytest.raises(DeadlineExceeded):
        sooner.future.result(timeout=PATIENCE)
    assert not later.future.done()


def test_a_job_that_no_thread_would_watch_is_not_queued(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client hears when to come back, and the next job is queued as ever."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(Overloaded, match="no thread"):
            bench.submit()
    assert bench.batcher.depth == 0
    job = bench.submit()
    assert bench.take().jobs == (job,)


def test_a_job_past_its_deadline_never_starts(bench: Bench) -> None:
    """An instance that comes too late gets the next job; the late one fails."""
    late, good = bench.submit(timeout=1.0), bench.submit(timeout=60.0)
    bench.clock.advance(2.0)
    assert bench.take().jobs == (good,)
    with pytest.raises(DeadlineExceeded):
        late.future.result(timeout=PATIENCE)


def test_a_cancelled_job_leaves_the_queue_at_once(bench: Bench) -> None:
    """A client that goes away frees its place and is counted; its job never runs."""
    gone, good = bench.submit(), bench.submit()
    assert gone.future.cancel()
    assert bench.batcher.depth == 1
    assert bench.rejections == {"cancelled": 1}
    assert bench.take().jobs == (good,)


def test_a_running_job_cannot_be_cancelled() -> None:
    """From its entry into a batch the future is no longer cancellable, so no neighbour hangs."""
    bench = Bench(ManualClock(), max_rows=4)
    jobs = [bench.submit() for _ in range(3)]
    batch = bench.take()
    assert not jobs[1].future.cancel()
    for job in batch.jobs:
        job.finish(infer_result())
    assert [job.future.result(timeout=PATIENCE) for job in jobs] == [infer_result()] * 3


def test_low_priority_is_shed_for_a_normal_job(bench: Bench) -> None:
    """A full queue drops its youngest low-priority job to take a normal one."""
    for _ in range(15):
        bench.submit()
    low = bench.submit(priority=1)
    bench.submit()
    assert isinstance(low.future.exception(timeout=PATIENCE), Overloaded)
    assert bench.rejections == {"shed": 1}
    assert bench.batcher.depth == 16


def test_jobs_of_one_request_are_queued_together_or_not_at_all(bench: Bench) -> None:
    """Five for four places: none is queued, and what was shed for them is back in its order."""
    low = [bench.submit(priority=1) for _ in range(2)]
    for _ in range(12):
        bench.submit()
    with pytest.raises(Overloaded) as refused:
        bench.batcher.submit(*[bench.job() for _ in range(5)])
    assert (refused.value.limit, refused.value.received) == (16, 17)
    assert bench.batcher.depth == 14
    assert bench.rejections == {"queue_full": 1}
    assert not any(job.future.done() for job in low)
    assert [bench.take().jobs[0] for _ in range(14)][-2:] == low


def test_more_jobs_than_the_queue_has_places_are_the_requests_fault(bench: Bench) -> None:
    """They would be refused for ever: nobody is told to come back."""
    with pytest.raises(TooManyInputs, match="makes 17 jobs; the limit is 16") as refused:
        bench.batcher.submit(*[bench.job() for _ in range(17)])
    assert (refused.value.limit, refused.value.received) == (16, 17)
    assert bench.batcher.depth == 0
    bench.batcher.submit(*[bench.job() for _ in range(16)])
    bench.batcher.submit(*[bench.job(priority=URGENT) for _ in range(17)])


def test_a_refused_request_moves_nobodys_turn(bench: Bench) -> None:
    """Neither its caller's nor that of jobs of lower priority, which would have been dropped."""
    low = [bench.submit(priority=1, caller="low") for _ in range(2)]
    flood = [bench.submit(caller="flood") for _ in range(14)]
    for _ in range(5):
        with pytest.raises(Overloaded):
            bench.batcher.submit(*[bench.job(caller="many") for _ in range(3)])
    flood.pop().future.cancel()
    flood.pop().future.cancel()
    many = bench.submit(caller="many")
    other = bench.submit(priority=1, caller="other")
    turns = [bench.take().jobs[0] for _ in range(bench.batcher.depth)]
    assert turns == [flood[0], many, *flood[1:], low[0], other, low[1]]


def test_low_priority_sheds_nobody(bench: Bench) -> None:
    """A low-priority job that meets a full queue is itself refused."""
    for _ in range(16):
        bench.submit(priority=1)
    with pytest.raises(Overloaded):
        bench.submit(priority=1)


def test_an_unhealthy_instance_takes_nothing(bench: Bench) -> None:
    """The job stays queued for another instance."""
    job = bench.submit()
    assert bench.batcher.take(lambda: False) is None
    assert bench.take().jobs == (job,)


def test_an_idle_instance_notices_that_its_predictor_died(bench: Bench) -> None:
    """Without any job, take() comes back within a second when the predictor is gone."""
    began = time.monotonic()
    sleeper = Sleeper(began + HEALTH_SECONDS)
    assert bench.batcher.take(lambda: False) is None
    took = time.monotonic() - began
    assert took < 1.0 + sleeper.late()


def test_the_next_batch_is_left_to_an_idle_instance() -> None:
    """One that is about to be free takes nothing for which another one is waiting already."""
    bench = Bench(ManualClock(), live=2, max_delay=0.5)
    assert bench.batcher.take_prefetch() is None
    with bench.idle_instance() as waiting:
        job = bench.submit()
        bench.clock.advance(1.0)
        assert bench.batcher.take_prefetch() is None
        taken = waiting.result(timeout=PATIENCE)
        assert taken is not None
        assert taken.jobs == (job,)
    other = bench.submit()
    bench.clock.advance(1.0)
    assert (batch := bench.batcher.take_prefetch()) is not None
    assert batch.jobs == (other,)
    bench.batcher.close(ModelNotReady("the test is over"))
    assert bench.batcher.take_prefetch() is None


def test_what_comes_back_goes_to_whoever_is_free_first() -> None:
    """An instance that lost its predictor gives back what had not begun; its turn has come."""
    bench = Bench(ManualClock(), live=2)
    jobs = [bench.submit() for _ in range(3)]
    first, second = bench.take(), bench.take()
    bench.batcher.give_back(first, second)
    assert bench.batcher.inflight == 2
    assert [bench.take().jobs for _ in range(3)] == [(job,) for job in jobs]


def test_what_comes_back_wakes_an_idle_instance() -> None:
    """Which need not wait until the lost predictor is replaced."""
    bench = Bench(ManualClock(), live=2)
    job = bench.submit()
    batch = bench.take()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(bench.take)
        bench.batcher.give_back(batch)
        assert waiting.result(timeout=PATIENCE).jobs == (job,)


def test_nobody_is_given_a_job_that_is_over() -> None:
    """Of a batch that came back, what has been failed at its deadline meanwhile is left out."""
    bench = Bench(ManualClock(), max_rows=2)
    over, waiting = bench.submit(), bench.submit()
    batch = bench.take()
    over.fail(DeadlineExceeded("too late"))
    bench.batcher.give_back(batch)
    assert bench.take().jobs == (waiting,)
    bench.batcher.give_back(batch)
    waiting.fail(DeadlineExceeded("too late"))
    assert bench.batcher.take_prefetch() is None


def test_closing_fails_what_has_come_back_and_what_comes_back_later() -> None:
    """Nobody will take it any more."""
    bench = Bench(ManualClock(), live=2)
    early, late = bench.submit(), bench.submit()
    first, second = bench.take(), bench.take()
    bench.batcher.give_back(first)
    bench.batcher.close(ModelNotReady("over"))
    assert isinstance(early.future.exception(timeout=PATIENCE), ModelNotReady)
    assert not late.future.done()
    bench.batcher.give_back(second)
    assert isinstance(late.future.exception(timeout=PATIENCE), ModelNotReady)
    assert bench.batcher.inflight == 0


def test_an_idle_instance_counts_although_another_has_two_batches() -> None:
    """A job that would run at once is admitted, however many batches a busy instance holds."""
    bench = Bench(ManualClock(), live=2)
    bench.usual(5.0)
    bench.submit(), bench.submit()
    bench.take(), bench.batcher.take_prefetch()
    with bench.idle_instance() as waiting:
        job = bench.submit(timeout=1.0)
        taken = waiting.result(timeout=PATIENCE)
        assert taken is not None
        assert taken.jobs == (job,)


def test_closing_fails_what_waits_and_lets_instances_go(bench: Bench) -> None:
    """No future is left unsettled and nobody may submit any more."""
    waiting = bench.submit()
    bench.batcher.close(ModelNotReady("closing"))
    assert isinstance(waiting.future.exception(timeout=PATIENCE), ModelNotReady)
    assert bench.batcher.take(lambda: True) is None
    with pytest.raises(ModelNotReady):
        bench.submit()


def test_closing_keeps_nothing_of_those_who_waited(bench: Bench) -> None:
    """Each hears of it with an error of his own: one error would keep the frames of all."""
    jobs = [bench.submit() for _ in range(16)]
    bodies: list[weakref.ref[np.ndarray[Any, Any]]] = []

    def wait(job: Job) -> None:
        body = np.zeros(1)
        bodies.append(weakref.ref(body))
        job.future.result(timeout=PATIENCE)

    bench.batcher.close(ModelNotReady("closing"))
    while jobs:
        with contextlib.suppress(ModelNotReady):
            wait(jobs.pop())
    for _ in range(2):
        body = np.zeros(1)
        bodies.append(weakref.ref(body))
        with contextlib.suppress(ModelNotReady):
            bench.submit()
        del body
    gc.collect()
    assert [ref() for ref in bodies if ref() is not None] == []


@pytest.mark.parametrize("how", ["expires", "runs"])
def test_a_job_that_is_over_is_kept_by_nobody(how: str) -> None:
    """Also not by the thread that waits for the deadlines of others."""
    bench = Bench(time.monotonic)
    later = bench.submit(timeout=60.0, width=2)
    job = weakref.ref(bench.submit(timeout=0.2 if how == "expires" else 30.0))
    batches = [bench.take(), bench.take()] if how == "runs" else []
    threading.Event().wait(0.05)  # until the other thread waits for the next deadline
    for batch in batches:
        for each in batch.jobs:
            each.finish(infer_result())
        bench.batcher.finished(batch, 0.1)
    batch = each = None  # type: ignore[assignment]
    batches.clear()
    wait_until(lambda: job() is None, patience=5.0)
    assert later.future.done() == (how == "runs")
    bench.batcher.close(ModelNotReady("the test is over"))


def test_a_settled_job_does_not_begin(bench: Bench) -> None:
    """Its deadline may have come between the queue and the batch."""
    over, waiting = bench.submit(), bench.submit()
    over.fail(DeadlineExceeded("too late"))
    assert not over.begin()
    assert bench.take().jobs == (waiting,)


def test_every_future_is_settled_in_a_storm() -> None:
    """Four instances, eight clients, short deadlines, cancellations, two priorities and batches
    that come back: each of 2,000 jobs ends, and none both runs and is dropped."""
    bench = Bench(time.monotonic, max_rows=4, max_queue=32, live=4)
    ran: Counter[int] = Counter()
    refused = Counter[str]()

    def instance() -> None:
        for turn in itertools.count():
            batch = bench.batcher.take(lambda: True)
            if batch is None:
                return
            if turn % 5 == 0:
                bench.batcher.give_back(batch)
                continue
            if turn % 5 == 1:
                bench.batcher.divide(batch)
                continue
            for job in batch.jobs:
                ran[id(job)] += 1
                if job.claim():
                    job.finish(infer_result())
            bench.batcher.finished(batch, 0.0001)

    def client(number: int) -> list[Job]:
        jobs = []
        for turn in range(250):
            timeout = 0.0005 if turn % 5 == 0 else 30.0
            job = bench.job(timeout=timeout, width=1 + turn % 3, priority=(number + turn) % 2)
            try:
                bench.batcher.submit(job)
            except (Overloaded, DeadlineExceeded) as error:
                refused[error.code] += 1
                continue
            jobs.append(job)
            if turn % 7 == 0:
                job.future.cancel()
        return jobs

    instances = [threading.Thread(target=instance) for _ in range(4)]
    for thread in instances:
        thread.start()
    with ThreadPoolExecutor(8) as clients:
        jobs = [job for part in clients.map(client, range(8)) for job in part]
    outcomes = Counter(_outcome(job) for job in jobs)
    bench.batcher.close(ModelNotReady("over"))
    for thread in instances:
        thread.join(PATIENCE)
    assert sum(outcomes.values()) + sum(refused.values()) == 2000
    assert outcomes["ran"] > 0
    assert max(ran.values()) == 1
    dropped = [job for job in jobs if job.future.cancelled()]
    assert not [job for job in dropped if ran[id(job)]]


def _outcome(job: Job) -> str:
    try:
        job.future.result(timeout=PATIENCE)
    except CancelledError:
        return "cancelled"
    except (DeadlineExceeded, Overloaded) as error:
        return error.code
    return "ran"


def test_an_endless_deadline_is_possible(bench: Bench) -> None:
    """The reaper can wait for a deadline that never comes."""
    assert not bench.submit(timeout=math.inf).future.done()
