"""The jobs of one request: divided into runs, queued in limited number, and joined."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np

from paddlepool.contracts.errors import ModelOutputInvalid
from paddlepool.contracts.ports import InferResult
from paddlepool.contracts.tensors import Tensors
from paddlepool.engine.concurrency import gather_or_cancel, in_thread_or_inline
from paddlepool.engine.queue.job import INLINE_BYTES, ShapeKey

MAX_PARTS = 1024
"""Maximum runs into which one job is divided: the objects of each run take memory."""

T = TypeVar("T")


class CheckedJob(NamedTuple):
    """Tensors of one job that fit the model, with the facts that the queue needs."""

    inputs: Tensors
    rows: int
    key: ShapeKey

    def parts(self, max_rows: int) -> list["CheckedJob"]:
        """Divide the job into jobs of at most `max_rows` rows, with views of its tensors."""
        if self.rows <= max_rows:
            return [self]
        return [
            CheckedJob(
                {name: array[start : start + max_rows] for name, array in self.inputs.items()},
                min(max_rows, self.rows - start),
                self.key,
            )
            for start in range(0, self.rows, max_rows)
        ]


async def joined(parts: Sequence[Tensors]) -> Tensors:
    """Return the outputs of a divided job from those of its parts, joined along axis 0.

    More than INLINE_BYTES are joined in a thread. Raises ModelOutputInvalid if the outputs of the
    parts differ in more than the size of axis 0.
    """
    if sum(array.nbytes for part in parts for array in part.values()) > INLINE_BYTES:
        return await in_thread_or_inline("joining", partial(_joined, parts))
    return _joined(parts)


def _joined(parts: Sequence[Tensors]) -> Tensors:
    try:
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    except ValueError:
        raise ModelOutputInvalid(
            "the request was divided, and the outputs of its parts differ in more than their rows; "
            "send fewer rows"
        ) from None


async def in_portions(
    jobs: Sequence[T],
    portion: int,
    submit: Callable[..., list["asyncio.Future[InferResult]"]],
) -> list[InferResult]:
    """Run all jobs, at most `portion` at a time; return the results in the order of the jobs.

    `submit` is ServedModel.submit_all() with its other arguments filled in. The first `portion`
    jobs are queued together; then each job that ends is replaced by one more, with `following`. If
    there are more than `portion` jobs, all are `large`. The first failure is raised and cancels the
    other jobs, and so does an error of `submit`.
    """
    if len(jobs) <= portion:
        return await gather_or_cancel(submit(jobs))
    results: dict[int, InferResult] = {}
    numbers = dict(zip(submit(jobs[:portion], large=True), range(portion), strict=True))
    following = portion
    done: set[asyncio.Future[InferResult]] = set()
    future: asyncio.Future[InferResult] | None = None
    try:
        while numbers:
            done, _ = await asyncio.wait(numbers, return_when=asyncio.FIRST_COMPLETED)
            ended = len(done)
            while done:
                future = done.pop()
                results[numbers.pop(future)] = future.result()
            for job in jobs[following : following + ended]:
                [future] = submit([job], following=True, large=True)
                numbers[future] = following
                following += 1
        return [results[number] for number in range(len(jobs))]
    finally:  # a future keeps its error, and the error this frame: see gather_or_cancel()
        done.clear()
        future = None
        while numbers:
            numbers.popitem()[0].cancel()
