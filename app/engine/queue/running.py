"""The batches that instances hold, and those that they gave back."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace

from app.engine.queue.job import Batch, Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Instances:
    """State of the instances at one moment.

    `live` of them accept batches, and `free` is whether one would take a job at once. If a job has
    to wait, the runs under way still need `running` seconds in total.
    """

    live: int
    running: float
    free: bool


class Running:
    """All batches under way; a batch that was given back still counts as running."""

    def __init__(self) -> None:
        self.batches: set[Batch] = set()
        self.returned: deque[Batch] = deque()

    def seconds_left(self, now: float) -> float:
        """Total seconds that the runs under way still need, from their usual duration."""
        return sum(max(0.0, batch.started + batch.expected_seconds - now) for batch in self.batches)

    def jobs(self) -> list[Job]:
        return [job for batch in tuple(self.batches) for job in batch.jobs]

    def overdue(self, now: float) -> list[Job]:
        return [job for job in self.jobs() if job.deadline <= now and not job.future.done()]

    def next_deadline(self) -> float:
        return min((job.deadline for job in self.jobs() if not job.future.done()), default=math.inf)

    def resume(self, now: float) -> Batch | None:
        """Return a batch that was given back, without the jobs that are settled, or None."""
        while self.returned:
            batch = self.returned.popleft()
            self.batches.discard(batch)
            if jobs := tuple(job for job in batch.jobs if not job.future.done()):
                batch = replace(batch, jobs=jobs, started=now)
                self.batches.add(batch)
                return batch
        return None

    def divide(self, batch: Batch) -> list[Batch]:
        """Split the batch into one for each of its jobs."""
        alone = [replace(batch, jobs=(job,)) for job in batch.jobs]
        self.batches.discard(batch)
        self.batches.update(alone)
        return alone

    def drop_returned(self) -> list[Job]:
        """Forget the batches that were given back and return their jobs."""
        jobs = [job for batch in self.returned for job in batch.jobs]
        self.batches.difference_update(self.returned)
        self.returned.clear()
        return jobs
