"""The scheduler in any order of events: every future settles, once, and nothing is left over."""

import asyncio
import contextlib
import contextvars
import gc
import tempfile
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from paddlepool.contracts.errors import BackendError, ModelNotReady, Overloaded, WorkerCrashed
from paddlepool.contracts.reasons import Restart
from paddlepool.contracts.tensors import Tensors
from paddlepool.engine.pool.context import Yielding
from paddlepool.engine.pool.group import Group
from paddlepool.engine.queue.admission import Reservation
from paddlepool.engine.registry.model import ServedModel
from paddlepool.engine.registry.parts import in_portions
from tests.engine.fakes import (
    PATIENCE,
    Crash,
    FakeFactory,
    FakePredictor,
    ManualClock,
    RecordingObserver,
    calling,
    doubled,
    eventually,
    failing,
    row,
    served_double,
    wait_until,
    write_double,
)

T = TypeVar("T")
COUNT, LIMIT = 2, 2
PORTION = 2
"""Jobs of one request in the queue of such a model."""
FAST = {
    "paddlepool.engine.pool.context.DELAYS": (0.0,) * 9,
    "paddlepool.engine.pool.instance.IDLE_CHECK_SECONDS": 0.01,
    "paddlepool.engine.pool.instance.ABORT_SECONDS": 0.0,
    "paddlepool.engine.pool.instance.INLINE_BYTES": 8,
}
"""Nobody waits for the hands of a real clock, and two wide jobs are copied in a thread."""

numbers = st.integers(0, 100)
callers = st.sampled_from(("a", "b", "c"))


class Runs:
    """Runs that end when and how the rules say: the behaviour of every predictor."""

    def __init__(self) -> None:
        self._waiting: list[Future[None]] = []
        self._all_end = False

    def __call__(self, inputs: Tensors) -> Tensors:
        run: Future[None] = Future()
        self._waiting.append(run)
        if self._all_end:
            self.end_all()
        run.result(PATIENCE)
        return doubled(inputs)

    def __len__(self) -> int:
        return len(self._waiting)

    def end(self, number: int, error: Exception | None) -> None:
        if self._waiting:
            run = self._waiting.pop(number % len(self._waiting))
            run.set_exception(error) if error else run.set_result(None)

    def end_all(self) -> None:
        self._all_end = True
        with contextlib.suppress(IndexError):  # another thread may empty the list
            while True:
                self._waiting.pop().set_result(None)


class SchedulerMachine(RuleBasedStateMachine):
    """One served model with two predictors, and all that may happen.

    No rule has a precondition: threads decide what is refused, and the same rules must follow.
    """

    def __init__(self) -> None:
        super().__init__()
        self._cleanup = contextlib.ExitStack()
        for name, value in FAST.items():
            self._cleanup.enter_context(mock.patch(name, value))
        self._root = Path(self._cleanup.enter_context(tempfile.TemporaryDirectory()))
        write_double(self._root, batch=2, queue=LIMIT // COUNT, count=COUNT)
        self._runner = self._cleanup.enter_context(asyncio.Runner())
        self._threads = set(threading.enumerate())
        self.clock = ManualClock()
        self.factory = FakeFactory(seconds=0.01)
        self.observer = RecordingObserver()
        self.futures: list[asyncio.Future[Any]] = []
        self.settled: list[asyncio.Future[Any]] = []
        self.large: list[tuple[asyncio.Future[Any], float]] = []
        self.inputs: list[weakref.ref[Any]] = []
        self.reserved: list[tuple[ServedModel, Reservation]] = []
        self.models: list[ServedModel] = []
        self.yielding = Yielding(1.0)

    @initialize()
    def load(self) -> None:
        self.runs = self.factory.behaviour = Runs()
        self.model = self._call(
            served_double,
            self._root,
            self.factory,
            self.observer,
            clock=self.clock,
            yielding=self.yielding,
        )
        self.models.append(self.model)
        self._run(self.model.start())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work, context=contextvars.copy_context())

    def _call(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        """Call it on the event loop, and let the loop do what is due then."""

        async def call() -> T:
            result = function(*args, **options)
            await asyncio.sleep(0)
            return result

        return self._run(call())

    def _main(self, model: ServedModel) -> Group:
        return model._groups["main"]

    def _keep(self, futures: Sequence[asyncio.Future[Any]]) -> None:
        for future in futures:
            self.futures.append(future)
            future.add_done_callback(self.settled.append)

    def _tensors(self, width: int = 1) -> Tensors:
        inputs = row(*range(width))
        self.inputs.append(weakref.ref(inputs["x"]))
        return inputs

    def _settle_down(self) -> None:
        """Until each predictor is at work or has nothing to do."""
        main = self._main(self.model)

        def still() -> bool:
            status = main.status()
            if main._batcher.closed:
                return True
            queued = status.queue_depth + len(main._batcher._requeued)
            return status.live == COUNT and (queued == 0 or len(self.runs) >= COUNT)

        self._run(eventually(still))

    @rule(
        jobs=st.integers(1, LIMIT),
        priority=st.sampled_from((-1, 0, 0, 1)),
        seconds=st.just(5.0),
        caller=callers,
        width=st.integers(1, 2),
    )
    def submit(self, jobs: int, priority: int, seconds: float, caller: str, width: int) -> None:
        with calling(caller), contextlib.suppress(Overloaded, ModelNotReady):
            self._keep(
                self._call(
                    self.model.submit_all,
                    self.model.checked([self._tensors(width) for _ in range(jobs)]),
                    deadline=self.clock() + seconds,
                    priority=priority,
                )
            )

    @rule(jobs=st.integers(PORTION + 1, 4 * PORTION), caller=callers, width=st.integers(1, 2))
    def submit_large(self, jobs: int, caller: str, width: int) -> None:
        """A request of more jobs than a portion; its deadline is nobody else's."""
        deadline = self.clock() + 5.0 + 1e-6 * (1 + len(self.large))
        assert self.model.portion("main") == PORTION
        submit = partial(self.model.submit_all, deadline=deadline)
        checked = self.model.checked([self._tensors(width) for _ in range(jobs)])
        with calling(caller):
            request = self._call(asyncio.ensure_future, in_portions(checked, PORTION, submit))
        # Nobody awaits it: the log would keep its error, and with that the arrays.
        request.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._keep([request])
        self.large.append((request, deadline))

    @rule(places=st.integers(1, LIMIT + 1), caller=callers)
    def reserve(self, places: int, caller: str) -> None:
        for _ in range(places):
            with calling(caller), contextlib.suppress(Overloaded, ModelNotReady):
                reservation = self._call(self.model.reserve, deadline=self.clock() + 60.0)
                self.reserved.append((self.model, reservation))

    @rule(number=numbers)
    def release(self, number: int) -> None:
        if self.reserved:
            self._call(self.reserved.pop(number % len(self.reserved))[1].release)

    @rule(number=numbers)
    def submit_reserved(self, number: int) -> None:
        """Its place is there, unless nobody serves any more."""
        if not self.reserved:
            return
        model, reservation = self.reserved.pop(number % len(self.reserved))
        with contextlib.suppress(ModelNotReady):
            self._keep(
                self._call(
                    model.submit_all,
                    model.checked([self._tensors()]),
                    deadline=self.clock() + 60.0,
                    reservation=reservation,
                )
            )
        self._call(reservation.release)

    @rule(number=numbers)
    def cancel(self, number: int) -> None:
        if self.futures:
            self._call(self.futures[number % len(self.futures)].cancel)

    @rule(seconds=st.sampled_from((1.0, 6.0, 61.0)))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self._call(self._main(self.model)._batcher._fail_due)  # its timer goes by the real clock

    @rule(number=numbers)
    def finish(self, number: int) -> None:
        self._settle_down()
        self.runs.end(number, None)

    @rule(number=numbers)
    def fail(self, number: int) -> None:
        self._settle_down()
        self.runs.end(number, BackendError("refused"))

    @rule(number=numbers)
    def crash(self, number: int) -> None:
        self._settle_down()
        self.runs.end(number, Crash("gone"))

    def _alive(self, number: int) -> Iterator[FakePredictor]:
        alive = [predictor for predictor in self.factory.opened if not predictor.closed.is_set()]
        if alive:
            yield alive[number % len(alive)]

    @rule(number=numbers, silently=st.booleans())
    def kill_one(self, number: int, silently: bool) -> None:
        """Whether it is idle or in a run; one that dies silently is found dead when it is used."""
        for predictor in self._alive(number):
            if silently:
                predictor.dead = Restart.KILLED
            else:
                predictor.die()

    @rule(number=numbers)
    def hang_one(self, number: int) -> None:
        """Its run takes too long, or the next one will."""
        for predictor in self._alive(number):
            predictor.hung = True

    @rule(number=numbers)
    def grow_one(self, number: int) -> None:
        """A successor takes over between two of its runs."""
        for predictor in self._alive(number):
            predictor.resident = 3 << 30

    @rule()
    def opening_fails_once(self) -> None:
        self.factory.selftest = failing(lambda: WorkerCrashed("killed"), times=1)

    @rule()
    def close(self) -> None:
        closing = self._call(asyncio.ensure_future, self.model.close())
        assert self._main(self.model)._batcher.closed
        self.runs.end_all()
        self._run(asyncio.wait_for(closing, PATIENCE))
        self.runs = self.factory.behaviour = Runs()

    @rule()
    def reload(self) -> None:
        """A new version takes over; whoever still waits for the old one hears of it."""
        self.close()
        self.load()

    @invariant()
    def no_more_live_than_there_are(self) -> None:
        for model in self.models:
            assert 0 <= model.groups()[0].live <= COUNT

    @invariant()
    def every_place_is_given_once(self) -> None:
        for model in self.models:
            batcher = self._main(model)._batcher
            held = len(batcher._admission.reservations)
            # A caller who has nothing finds a place, as many as there are; and the jobs of a large
            # request follow each other, whoever took the places meanwhile.
            unfinished = sum(not request.done() for request, _ in self.large)
            assert held + batcher._queues.counted(0) <= 2 * LIMIT + PORTION * unfinished
            assert held <= len(self.reserved)

    @invariant()
    def a_large_request_leaves_as_a_whole(self) -> None:
        """Cancelled, failed or late, it has no job in a queue; before, it has a portion at most."""
        for _ in range(3):  # the loop settles the request, then its jobs
            self._call(lambda: None)
        jobs = [job for model in self.models for job in self._main(model)._batcher._queues]
        queued = Counter(job.deadline for job in jobs)
        assert {job.deadline for job in jobs if job.large} <= {due for _, due in self.large}
        for request, deadline in self.large:
            assert queued[deadline] <= (0 if request.done() else PORTION)
            assert all(job.large for job in jobs if job.deadline == deadline)

    def teardown(self) -> None:
        try:
            if self.models:
                self._settle_everything()
        finally:
            self._cleanup.close()

    def _settle_everything(self) -> None:
        for _, reservation in self.reserved:
            self._call(reservation.release)
        self.runs.end_all()
        if not self._main(self.model)._batcher.closed:
            self._settle_down()
        self._run(self.model.close())
        self._run(eventually(lambda: len(self.settled) == len(self.futures)))
        assert sorted(map(id, self.settled)) == sorted(map(id, self.futures))
        for model in self.models:
            assert self._main(model)._batcher.idle
            assert [group.live for group in model.groups()] == [0, 0]
        assert all(predictor.closed.is_set() for predictor in self.factory.opened)
        assert not self.yielding.suspension.held
        wait_until(lambda: set(threading.enumerate()) <= self._threads)
        self.futures.clear()
        self.settled.clear()
        self.large.clear()
        # The thread of the loop may still be running the callbacks of the last jobs.
        wait_until(lambda: gc.collect() >= 0 and all(array() is None for array in self.inputs))


TestScheduler = pytest.mark.slow(SchedulerMachine.TestCase)
TestScheduler.settings = settings(
    max_examples=25,
    stateful_step_count=30,
    derandomize=True,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
