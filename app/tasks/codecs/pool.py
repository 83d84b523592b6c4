"""Codec processes behind a bounded queue, fed by the engine's scheduler; each can be killed.

A function that crashes, hangs or runs out of memory costs its own call and its process.
"""

import asyncio
import logging
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from app.contracts.errors import (
    BackendError,
    DeadlineExceeded,
    Overloaded,
    PaddlepoolError,
    WorkerCrashed,
)
from app.contracts.reasons import OPENING_FAILURES, Restart
from app.contracts.tensors import Tensors
from app.engine.awaiting import in_thread
from app.engine.pool.context import RestartBackoff
from app.engine.pool.instance import Instance, Run, close_all
from app.engine.process.answers import Check, Reply
from app.engine.process.child import Child, ChildDied
from app.engine.process.confinement import MEASURES, Confinement
from app.engine.process.environment import Limits, malloc_settings
from app.engine.queue.batcher import Batcher
from app.engine.queue.shape_queues import NORMAL, URGENT
from app.tasks.codecs.call import Call, CodecProcess
from app.tasks.codecs.limits import PictureLimits
from app.tasks.codecs.picture import PictureStore

TARGET = "app.tasks.codecs.sandbox:open_sandbox"
MEMORY_LIMIT = 1536 << 20
START_SECONDS = 60.0

# By default glibc returns a picture's memory to the system after each step, and gets zeroed pages
# for the next step. These settings make it keep blocks of up to 32 MiB.
ENVIRONMENT = malloc_settings(
    "mmap_threshold=33554432", "trim_threshold=67108864", "top_pad=16777216"
)

log = logging.getLogger(__name__)


@dataclass(eq=False, kw_only=True)
class CodecPool:
    """A pool of `count` codec processes. It belongs to the event loop; start() opens the processes.

    Each process first runs every function of `warm_ups`, as `function({}, {}, ())`, so that no
    request waits for an import. `memory_bytes` limits the address space of a process. `on_restart`
    is called with the reason when a process is replaced; it must not block or raise.
    """

    count: int
    warm_ups: Sequence[str] = ()
    queue_size: int = 32
    wall_seconds: float = 5.0
    memory_bytes: int = MEMORY_LIMIT
    on_restart: Callable[[Restart], None] = lambda _: None

    def __post_init__(self) -> None:
        self._limits = Limits(
            address_space=self.memory_bytes, environment=ENVIRONMENT, confinement=Confinement.CODEC
        )
        self._held: tuple[str, ...] | None = None
        self._backoff = RestartBackoff(time.monotonic)
        self._checks: dict[str, Check] = {}
        self._batcher = Batcher(
            max_rows=1,
            max_delay=0.0,
            max_queue=self.queue_size,
            clock=time.monotonic,
            on_rejected=lambda _: None,
        )
        self._instances: list[Instance[Call, Reply]] = []

    def start(self) -> None:
        self._instances = [
            Instance(
                name=f"codec {number}",
                open_worker=self._open,
                batcher=self._batcher,
                lost=self._lost,
                request_of=lambda batch: cast(Call, batch.jobs[0]),
                deliver=_deliver,
                serving=lambda _: None,
                clock=time.monotonic,
                max_resident_bytes=sys.maxsize,
                ahead=False,  # no call is queued behind a picture that may hang
            )
            for number in range(self.count)
        ]

    async def opened(self) -> None:
        """Wait until every process is open and warm. Raises BackendError after START_SECONDS."""
        opened = [instance.opened for instance in self._instances]
        if opened and (await asyncio.wait(opened, timeout=START_SECONDS))[1]:
            raise BackendError(f"the codec processes were not ready in {START_SECONDS:.0f} s")

    def submit(
        self,
        function: str,
        meta: Mapping[str, Any],
        arrays: Tensors | None = None,
        *,
        descriptors: Sequence[int] = (),
        deadline: float,
        blame: type[PaddlepoolError] = WorkerCrashed,
        urgent: bool = False,
    ) -> asyncio.Future[Reply]:
        """Run `function(meta, arrays, descriptors)` ("module:name") in a codec process.

        Raises Overloaded if the queue is full or too slow for the deadline. Pass `urgent` for our
        own arrays and the last steps of a request, such as encoding: an urgent call is scheduled
        before the others, does not count against the queue's limit, and may run until its deadline.

        The future raises the function's error, or DeadlineExceeded. It raises `blame` if the
        process crashed, ran out of memory or exceeded the wall limit, because a picture that kills
        its decoder is at fault. It raises Overloaded if two processes in turn were killed from
        outside during the call, and WorkerCrashed if the answer was invalid.

        Descriptors are duplicated: the caller may close its own at any time. Cancelling the future
        drops a call that is still queued.
        """
        call = Call(
            function=function,
            meta=meta,
            inputs=arrays or {},
            rows=1,
            key=((function, "", ()),),
            priority=URGENT if urgent else NORMAL,
            deadline=deadline,
            enqueued=time.monotonic(),
            wall_seconds=math.inf if urgent else self.wall_seconds,
            blame=blame,
        )
        call.future.add_done_callback(lambda _: call.close())
        try:
            call.hold(descriptors)
            self._batcher.submit(call)
        except DeadlineExceeded as late:
            call.fail(late)
        except BaseException:
            call.close()
            raise
        return call.future

    def expect(self, function: str, check: Check) -> None:
        """Check each answer of `function` with `check`; kill the process if one is rejected."""
        self._checks[function] = check

    def _check(self, asked: Mapping[str, Any], meta: Mapping[str, Any], arrays: Tensors) -> None:
        if (check := self._checks.get(asked["function"])) is not None:
            check(asked["meta"], meta, arrays)

    @property
    def live(self) -> int:
        return self._batcher.live

    @property
    def held(self) -> tuple[str, ...]:
        """Names of those MEASURES of confinement that are in force in the processes."""
        return self._held or ()

    async def close(self) -> None:
        """Fail the queued calls, and return when every process has ended."""
        self._batcher.close(Overloaded("the server is stopping"))
        await close_all(self._instances)

    async def _open(self, _: bool) -> CodecProcess:
        return await in_thread("codec opening", self._opened)

    def _opened(self) -> CodecProcess:
        try:
            child = Child(
                TARGET, {}, limits=self._limits, start_timeout=START_SECONDS, check=self._check
            )
        except (ChildDied, PaddlepoolError) as error:
            raise WorkerCrashed(f"a codec process did not start: {error}") from error
        process = CodecProcess(child)
        if self._held is None and (missing := [m for m in MEASURES if m not in child.held]):
            log.warning("codec processes are not confined by %s", " nor by ".join(missing))
        self._held = child.held
        try:
            for failure in process.warm_up(self.warm_ups, timeout=START_SECONDS):
                # Not fatal: the first real call reports the same error to its caller.
                log.error("a warm-up failed in a codec process", exc_info=failure)
        except BaseException:
            process.close()
            raise
        return process

    def _lost(self, reason: Restart) -> float:
        """Seconds to wait before a lost process is replaced.

        A process that was open is replaced at once: pictures that kill processes must not make
        other pictures wait.
        """
        if reason in OPENING_FAILURES:
            return self._backoff.delay_after_loss()
        self.on_restart(reason)
        return 0.0


def _deliver(run: Run, reply: Reply) -> None:
    [call] = run.batch.jobs
    if not call.future.done():
        call.future.set_result(reply)


@dataclass(frozen=True, slots=True, kw_only=True)
class Codecs:
    """The codec processes, the memory budget of decoded pictures, and the limits on a picture."""

    pool: CodecPool
    pictures: PictureStore
    limits: PictureLimits = field(default_factory=PictureLimits)
