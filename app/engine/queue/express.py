"""What an express instance may run: jobs that would wait for a run of somebody else's flood."""

from __future__ import annotations

import math

from app.engine.queue.job import Job
from app.engine.queue.running import Running
from app.engine.queue.shape_queues import ShapeQueues


def express_jobs(queues: ShapeQueues, running: Running, now: float) -> tuple[list[Job], float]:
    """The jobs, still in their queue, and when to ask again if there are none.

    Where no instance is idle, and one runs for heavy callers alone, they are those of callers who
    have little to do: nothing of them runs, and no more waits than one batch takes.
    """
    callers = [{job.caller for job in batch.jobs} for batch in running.batches]
    if running.idle or not any(all(map(queues.heavy, each)) for each in callers):
        return [], math.inf
    quiet = {
        each for each in queues.callers_waiting().difference(*callers) if not queues.heavy(each)
    }
    return queues.next_batch(now, quiet.__contains__) if quiet else ([], math.inf)
