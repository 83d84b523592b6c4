"""The waiting jobs of one instance group, by priority and shape; chooses the next batch."""

import itertools
import math
from bisect import insort
from collections import Counter, OrderedDict
from collections.abc import Iterator
from operator import itemgetter

from paddlepool.engine.queue.job import Job, ShapeKey

WEIGHT = 0.25
MAX_SHAPES = 256
"""Maximum shapes whose average is stored: those that ran last."""
MAX_RATIO = 4.0
"""A run counts as at most this many times the average. Without this limit, one delayed run (a
stopped process, a frozen machine) would make admission reject requests that can be served."""


class ServiceTime:
    """Moving average of the seconds of one run, for each shape; the newest run weighs a quarter.

    For a shape without an average of its own, the one over all runs counts; before any run, 0.
    """

    def __init__(self) -> None:
        self._by_shape: OrderedDict[ShapeKey | None, float] = OrderedDict()
        self._overall: float | None = None

    def record(self, key: ShapeKey, seconds: float) -> None:
        self._overall = moving_average(self._overall, seconds)
        self._by_shape[key] = moving_average(self._by_shape.get(key), seconds)
        self._by_shape.move_to_end(key)
        if len(self._by_shape) > MAX_SHAPES:
            self._by_shape.popitem(last=False)

    def expected(self, key: ShapeKey | None) -> float:
        """Usual seconds of a run of this shape; of any shape if `key` is None or has not run."""
        return self._by_shape.get(key, self._overall or 0.0)


def moving_average(average: float | None, value: float) -> float:
    """Return the average with a new value, which weighs a quarter.

    A value of more than MAX_RATIO times the average counts as that much. Without an average (None
    or 0), the result is the value.
    """
    if not average:
        return value
    return average + WEIGHT * (min(value, MAX_RATIO * average) - average)


QueueKey = tuple[int, ShapeKey]

MAX_CALLERS = 1024
"""The next turn is stored for this many callers, or for twice as many as wait if that is more."""

URGENT, NORMAL = -1, 0
"""Priorities: smaller goes first. Urgent work is not counted against the limit of the queue."""


Turn = tuple[float, int]
"""Scheduling key of a job: its start in virtual time, then its number in the order of arrival.
Virtual time counts the rows that each waiting caller has had."""


class ShapeQueues:
    """Queues that serve callers fairly within a priority.

    Start-time fair queueing (Goyal, Vin and Cheng, 1996): a caller's turn comes when it has had as
    many rows as the other waiting callers. A caller with one job thus waits for one job of each
    other caller, not for all of them.

    Each queue holds the jobs of one priority and shape, ordered by turn. The queue whose head has
    the earliest turn goes first. A queue of lower priority (a larger number) waits while any job of
    higher priority waits, and its jobs never fill up a batch of higher priority.

    A batch has at most `max_rows` rows. A job waits up to `max_delay` seconds for others that fill
    its batch.
    """

    def __init__(self, *, max_rows: int, max_delay: float) -> None:
        self._max_rows = max_rows
        self._max_delay = max_delay
        self._queues: dict[QueueKey, list[tuple[Turn, Job]]] = {}
        self._now = 0.0  # virtual time: the start of the latest job that was taken
        self._next_start: dict[str, float] = {}
        self._rows: Counter[str] = Counter()  # waiting rows by caller
        self._sequence = itertools.count()
        self._size = 0
        self.rows = 0  # of all waiting jobs

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Job]:
        return (job for queue in self._queues.values() for _, job in queue)

    def start_of(self, caller: str) -> float:
        """The virtual time at which the caller's next job would start."""
        return max(self._now, self._next_start.get(caller, 0.0))

    def add(self, job: Job) -> None:
        start = self.start_of(job.caller)
        self._next_start[job.caller] = start + job.rows
        queue = self._queues.setdefault((job.priority, job.key), [])
        insort(queue, ((start, next(self._sequence)), job), key=itemgetter(0))
        self._rows[job.caller] += job.rows
        self.rows += job.rows
        self._size += 1
        if len(self._next_start) > max(MAX_CALLERS, 2 * len(self._rows)):
            # Forget callers without waiting jobs; each is forgiven at most one job of debt.
            self._next_start = {caller: self._next_start[caller] for caller in self._rows}

    def remove(self, *jobs: Job) -> bool:
        """Remove jobs that will not run; return whether any of them was queued.

        The later jobs of their callers move forward.
        """
        removed = [(job, turn) for job in jobs if (turn := self._remove(job)) is not None]
        for job, turn in removed:
            self._refund(job, turn)
        return bool(removed)

    def take(self, job: Job) -> None:
        """Remove a job that will run, and advance the virtual time to its start.

        If it was the last job, the virtual time is reset.
        """
        turn = self._remove(job)
        if turn is not None and self._queues:  # else the virtual time has been reset
            self._now = max(self._now, turn[0])

    def _remove(self, job: Job) -> Turn | None:
        queue = self._queues.get((job.priority, job.key), [])
        for position, (turn, waiting) in enumerate(queue):
            if waiting is job:
                del queue[position]
                self._size -= 1
                self.rows -= job.rows
                self._rows[job.caller] -= job.rows
                if not self._rows[job.caller]:
                    del self._rows[job.caller]
                if not queue:
                    del self._queues[job.priority, job.key]
                if not self._queues:  # no caller waits, so no debts remain: reset
                    self._now = 0.0
                    self._next_start.clear()
                return turn
        return None

    def _refund(self, removed: Job, turn: Turn) -> None:
        """Move the caller's later jobs forward by the rows of a job that did not run.

        These jobs keep their order. Rows whose virtual time has passed are not given back.
        """
        start, sequence = turn
        rows = min(removed.rows, start + removed.rows - self._now)
        if rows <= 0 or not self._queues:
            return
        self._next_start[removed.caller] -= rows
        if not self._rows[removed.caller]:
            return
        for queue in self._queues.values():
            for position, ((later, number), job) in enumerate(queue):
                if job.caller == removed.caller and number > sequence:
                    queue[position] = ((later - rows, number), job)
            queue.sort(key=itemgetter(0))

    def take_expired(self, now: float) -> list[Job]:
        """Remove and return every job whose deadline is `now` or earlier."""
        expired = [job for job in self if job.deadline <= now]
        self.remove(*expired)
        return expired

    def next_deadline(self) -> float:
        return min((job.deadline for job in self), default=math.inf)

    def next_batch(self, now: float, *, free: int = 1) -> tuple[list[Job], float]:
        """Return the jobs of a batch that may run now, and `now`; or no job, and when to retry.

        That time is infinite if no job waits. The jobs stay queued until take(). Only queues of the
        highest priority are considered. A queue is ready if its next batch is full or its first job
        has waited for `max_delay`. If `max_delay` is 0, batches need not be full: if there are more
        `free` instances than these queues need runs, the others get a share of the jobs, too.
        """
        retry_at = math.inf
        # The turn of the first job decides. Lower priorities wait.
        first = min((priority for priority, _ in self._queues), default=NORMAL)
        queues = [key for key in self._queues if key[0] == first]
        spare = free - sum(map(self._runs, queues)) if free > 1 and not self._max_delay else 0
        for queue in sorted(queues, key=lambda key: self._queues[key][0][0]):
            jobs, full = self._head_of(queue, spare)
            ready_at = jobs[0].enqueued + self._max_delay
            if full or ready_at <= now:
                return jobs, now
            retry_at = min(retry_at, ready_at)
        return [], retry_at

    def _head_of(self, queue: QueueKey, spare: int) -> tuple[list[Job], bool]:
        """Return the jobs of a queue's next batch, and whether it counts as full.

        The queue's jobs are divided among as many batches as they need, and `spare` more. `large`
        jobs and others share no batch, so that runs of small requests stay short. If jobs of both
        kinds wait, the batch counts as full, so that it does not wait for more jobs.
        """
        limit = self._max_rows
        if spare > 0:
            waiting = sum([job.rows for _, job in self._queues[queue]])
            limit = -(-waiting // (self._runs(queue) + spare))
        jobs: list[Job] = []
        rows = 0
        mixed = False
        for _, job in self._queues[queue]:
            if jobs and job.large is not jobs[0].large:
                mixed = True
                continue
            if jobs and rows + job.rows > limit:
                return jobs, True
            jobs.append(job)
            rows += job.rows
        return jobs, mixed or rows >= limit

    def _runs(self, queue: QueueKey, more: int = 0) -> int:
        """Number of runs that a queue's jobs and a further job of `more` rows need."""
        runs = left = 0
        for rows in (*[job.rows for _, job in self._queues.get(queue, ())], more):
            if rows > left:
                runs, left = runs + 1, self._max_rows
            left -= rows
        return runs

    def runs(self, priority: int, key: ShapeKey | None, rows: int) -> float:
        """Return how many runs a job added now and all waiting jobs of its priority need.

        The job has this `priority` and `rows` rows; `key` is its shape, None if unknown. It may run
        before waiting jobs of another caller, because callers are served in turn. If the number is
        unknown, infinity is returned: while jobs of higher priority wait, and while any job waits
        if there is a `max_delay`.
        """
        if self._queues and (self._max_delay or min(self._queues)[0] < priority):
            return math.inf
        own = self._runs((priority, key), rows) if key else 1
        others = [queue for queue in self._queues if queue[0] == priority and queue[1] != key]
        return own + sum([self._runs(queue) for queue in others])

    def seconds(self, times: ServiceTime) -> float:
        """Return the total seconds that processes need for all waiting jobs."""
        return sum([self._runs(queue) * times.expected(queue[1]) for queue in self._queues])

    def least_urgent(self, than: int) -> Job | None:
        """Return the job to drop: of those of the lowest priority, the one with the latest turn.

        Returns None if no job has a lower priority than `than`.
        """
        lowest = max((priority for priority, _ in self._queues), default=than)
        if lowest <= than:
            return None
        tails = (queue[-1] for key, queue in self._queues.items() if key[0] == lowest)
        return max(tails, key=lambda entry: entry[0])[1]

    def counted(self, priority: float = math.inf) -> int:
        """Number of jobs of this or a higher priority, without urgent ones."""
        items = self._queues.items()
        return sum([len(queue) for (other, _), queue in items if NORMAL <= other <= priority])

    def counts_job_of(self, caller: str) -> bool:
        """Whether a job of this caller is queued that is not urgent."""
        return any(job.caller == caller and job.priority >= NORMAL for job in self)

    def seconds_before(
        self, priority: int, joining: ShapeKey | None, rows: int, caller: str, times: ServiceTime
    ) -> float:
        """Return the total seconds of all runs ahead of a job of `caller` if it is added now.

        The job has this `priority` and `rows` rows; `joining` is its shape, None if unknown.
        """
        seconds = 0.0
        start = self.start_of(caller)
        for (other, key), queue in self._queues.items():
            if other > priority:
                continue
            waiting = sum(job.rows for (turn, _), job in queue if other < priority or turn <= start)
            if (other, key) == (priority, joining):
                # In its own queue the job shares the last run, unless that one is full.
                runs = (waiting + rows - 1) // self._max_rows
            else:
                runs = -(-waiting // self._max_rows)
            seconds += runs * times.expected(key)
        return seconds
