"""What an express instance may run, jobs that would wait for a run of somebody else's flood, and
what the others leave to it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from app.engine.queue.job import Job
from app.engine.queue.running import Running
from app.engine.queue.shape_queues import ShapeQueues


def express_jobs(queues: ShapeQueues, running: Running, now: float) -> tuple[list[Job], float]:
    """The jobs, still in their queue, and when to ask again if there are none.

    Where no instance is idle, and one runs for heavy callers alone, they are those of callers who
    have little to do: nothing of them runs, and no more waits than one batch takes.
    """
    runs = running.callers()
    if running.idle or not any(all(map(queues.heavy, run)) for run in runs):
        return [], math.inf
    quiet = _quiet(queues, runs)
    return queues.next_batch(now, quiet.__contains__) if quiet else ([], math.inf)


def other_jobs(queues: ShapeQueues, running: Running, now: float) -> tuple[list[Job], float]:
    """Likewise for the other instances. Where the express instance is idle, and will be given what
    they leave to it, they run the flood's alone: beside it, and behind it all the more, the others'
    jobs would take longer."""
    if not running.express_idle or running.idle:
        return queues.next_batch(now)
    runs = running.callers()
    if quiet := _quiet(queues, runs):
        jobs, _ = queues.next_batch(now, lambda caller: caller not in quiet)
        rows: Counter[str] = Counter()
        for job in jobs:
            rows[job.caller] += job.rows
        runs.append(set(rows))
        if jobs and any(all(queues.heavy(one, less=rows[one]) for one in run) for run in runs):
            return jobs, now
    return queues.next_batch(now)


def _quiet(queues: ShapeQueues, runs: Iterable[set[str]]) -> set[str]:
    """Callers who wait, have little to do and are in none of these runs."""
    waiting = queues.callers_waiting().difference(*runs)
    return {each for each in waiting if not queues.heavy(each)}
