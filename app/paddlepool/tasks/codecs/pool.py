"""Runs functions by name in codec processes: behind a bounded queue, with the engine's scheduler.

A function that crashes, hangs or runs out of memory ends its process and fails its own call only.
"""

import asyncio
import contextlib
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, cast

import numpy as np

from paddlepool.contracts import errors
from paddlepool.contracts.caller import CALLER
from paddlepool.contracts.ports import Interrupted, RequestContext
from paddlepool.contracts.reasons import OPENING_FAILURES, Restart
from paddlepool.contracts.tensors import Tensors
from paddlepool.engine.concurrency import in_thread
from paddlepool.engine.pool.context import RestartBackoff
from paddlepool.engine.pool.instance import Instance, Run, close_all
from paddlepool.engine.process.child import Child, ChildDied, ChildTimeout, ChildWorker
from paddlepool.engine.process.confinement import MEASURES, Confinement
from paddlepool.engine.process.environment import Limits
from paddlepool.engine.process.replies import Check, Reply
from paddlepool.engine.process.start import Spares
from paddlepool.engine.queue.batcher import Batcher
from paddlepool.engine.queue.job import Job
from paddlepool.engine.queue.shape_queues import NORMAL, URGENT
from paddlepool.tasks.codecs.limits import PictureLimits
from paddlepool.tasks.codecs.picture import PICTURE_LINK, PictureStore
from paddlepool.tasks.codecs.program import ENVIRONMENT, TARGET

READ_PICTURE = "paddlepool.tasks.codecs.reading:read_picture"
MEMORY_LIMIT = 1536 << 20
START_SECONDS = 60.0
KILLED_RETRY_SECONDS = 5.0
"""Seconds after which a client should retry if the system killed two processes with its picture."""

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False, kw_only=True)
class Call(Job):
    """A function to call in a codec process, by name, with its arguments; a job of one row.

    `meta`, `inputs` and `descriptors` are the arguments. The descriptors are duplicates of the
    caller's. They are closed when `future` is done, not earlier, because the call may be retried.
    `crash_error` is the class of the error if the call crashes its process or exceeds a limit.
    `wall_seconds` limits the run itself; time spent waiting for a processor does not count.
    `interrupted` says that another program killed or stopped the first process of the call.
    """

    function: str
    meta: Mapping[str, Any]
    wall_seconds: float
    crash_error: type[errors.PaddlepoolError]
    descriptors: list[int] = field(default_factory=list)
    interrupted: bool = False

    def close(self) -> None:
        while self.descriptors:
            os.close(self.descriptors.pop())


class CodecProcess(ChildWorker):
    """A child process that runs calls, one at a time: a `paddlepool.contracts.ports.Worker`."""

    def __init__(self, child: Child) -> None:
        super().__init__(child)
        self._call: Call | None = None
        self._wall = 0.0

    def put(self, call: Call, /) -> None:
        self._child.put(call.inputs)

    def send(self, call: Call, /) -> None:
        """Send the call, which runs when the process is free.

        Raises WorkerCrashed if the process has died, and DeadlineExceeded if the call's future is
        done already.
        """
        if call.future.done():  # the call's descriptors are closed, or will be at once
            raise errors.DeadlineExceeded("the deadline passed before a codec process was free")
        request = {"function": call.function, "meta": call.meta}
        try:
            self._child.send(request, descriptors=call.descriptors)
        except ChildDied as died:
            raise self._run_error(died) from None
        self._call = call

    def expect(self, *, timeout: float) -> None:
        if self._call is not None:
            self._wall = min(self._call.wall_seconds, timeout)
        self._child.expect(timeout=self._wall, patience=timeout - self._wall)

    def poll_reply(self) -> int | None:
        """Read the reply; return the bytes of request and reply, or None until the reply arrives.

        Raises the function's own error; the process then continues. If the process ended or was
        killed, raises one of the other errors of CodecPool.submit(), or Interrupted. Interrupted
        means that the system or another program killed or stopped the process, for example because
        the machine lacked memory, and that this is the first time for this call. The call did not
        cause this, and may be retried.
        """
        try:
            size = self._child.poll_reply()
        except ChildDied as died:
            raise self._run_error(died) from None
        except errors.WorkerCrashed:  # the sandbox raises it when memory runs out
            raise self._run_error(ChildDied(Restart.MEMORY, None)) from None
        except errors.PaddlepoolError:
            self._end_call()
            raise
        if size is not None:
            self._end_call()
        return size

    def fetch(self) -> Reply:
        return self._child.fetch()

    def _run_error(self, died: ChildDied) -> Exception:
        self._failure = died.reason
        call, self._call = self._call, None
        if call is None:
            return errors.WorkerCrashed(f"the codec process ended ({died.reason})")
        if isinstance(died, ChildTimeout):
            if self._wall < call.wall_seconds or died.starved:
                return errors.DeadlineExceeded("the deadline passed while a picture was open")
            limit = call.wall_seconds
            return call.crash_error(
                f"the picture took longer than the limit of {limit:g} s", limit=limit
            )
        if died.reason in (Restart.KILLED, Restart.STOPPED):
            if not call.interrupted:
                call.interrupted = True
                return Interrupted()
            message = "the system killed two processes that worked on the picture"
            return errors.Overloaded(message, retry_after=KILLED_RETRY_SECONDS)
        if died.reason is Restart.MEMORY:
            return call.crash_error("the picture needs more memory than the limit for one picture")
        if died.reason is Restart.TIMEOUT:
            return call.crash_error("the picture took longer than the limit for its size")
        crash_error = errors.WorkerCrashed if died.reason is Restart.CORRUPT else call.crash_error
        return crash_error("the process that worked on the picture died")

    def _end_call(self) -> None:
        """End the current call. Kill the process if it still has a picture open, and thus memory.

        Raises WorkerCrashed after killing the process.
        """
        self._call = None
        if any(link == PICTURE_LINK for link in self._open_files()):
            self._failure = Restart.CORRUPT
            self._child.kill()
            raise errors.WorkerCrashed("the process that worked on the picture died")

    def _open_files(self) -> Iterator[str]:
        directory = f"/proc/{self.pid}/fd"
        with contextlib.suppress(OSError):
            for descriptor in os.listdir(directory):  # noqa: PTH208  pathlib takes 3 times as long
                with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                    yield os.readlink(f"{directory}/{descriptor}")  # noqa: PTH115


@dataclass(eq=False, kw_only=True)
class CodecPool:
    """A pool of `count` codec processes. It belongs to the event loop; start() opens the processes.

    Each process first runs every function of `warm_ups`, as `function({}, {}, ())`, so that no
    request waits for an import. `queue_size` limits the waiting calls and `wall_seconds` the run of
    each, unless a call is urgent. `memory_bytes` limits the address space of a process.
    `on_restart` is called with the reason when a process that was open is replaced; it must not
    block or raise. Processes of `spares` are used first.
    """

    count: int
    warm_ups: Sequence[str] = ()
    queue_size: int = 32
    wall_seconds: float = 5.0
    memory_bytes: int = MEMORY_LIMIT
    on_restart: Callable[[Restart], None] = lambda _: None
    spares: Spares | None = None

    checks: dict[str, Check] = field(default_factory=lambda: {READ_PICTURE: check_read}, init=False)
    """Checks of replies, by function name. A process whose reply is rejected is killed."""
    held: tuple[str, ...] | None = field(default=None, init=False)
    """Those of MEASURES that confine the newest process; None before a process is opened."""

    def __post_init__(self) -> None:
        self._backoff = RestartBackoff(time.monotonic)
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
                open_worker=lambda _: in_thread("codec opening", self._open),
                batcher=self._batcher,
                on_loss=self._on_loss,
                make_request=lambda batch: cast(Call, batch.jobs[0]),
                on_result=_on_result,
                on_busy=lambda _: None,
                clock=time.monotonic,
                max_resident_bytes=sys.maxsize,
                prefetch=False,  # no call is queued behind a picture that may hang
            )
            for number in range(self.count)
        ]

    async def opened(self) -> None:
        """Wait until every process has been open and warm once.

        Raises BackendError if that takes more than START_SECONDS.
        """
        opened = [instance.opened for instance in self._instances]
        if opened and (await asyncio.wait(opened, timeout=START_SECONDS))[1]:
            raise errors.BackendError(
                f"the codec processes were not ready in {START_SECONDS:.0f} s"
            )

    def submit(
        self,
        function: str,
        meta: Mapping[str, Any],
        arrays: Tensors | None = None,
        *,
        descriptors: Sequence[int] = (),
        deadline: float,
        crash_error: type[errors.PaddlepoolError] = errors.WorkerCrashed,
        urgent: bool = False,
    ) -> asyncio.Future[Reply]:
        """Queue the call `function(meta, arrays, descriptors)` for a codec process.

        `function` is "module:name"; it returns a mapping of JSON values, and a mapping of arrays.
        Both become the Reply. Pass `urgent` for arrays that the server has made and for the last
        steps of a request, such as encoding: an urgent call is scheduled before the others, does
        not count against `queue_size`, and may run until its deadline. Raises Overloaded if the
        queue is full or too slow for the deadline, or if the pool is closed.

        The future raises the function's InputError, OperatorError or ModelOutputInvalid as it is,
        and another error as BackendError. It raises DeadlineExceeded if the deadline passed in the
        queue, before `wall_seconds` were over, or while other processes used the processors. It
        raises `crash_error` if the process crashed, ran out of memory or exceeded `wall_seconds`,
        because the picture is then the likely cause. It raises Overloaded if the pool was closed or
        if two processes in turn were killed from outside during the call, and WorkerCrashed if the
        process sent an invalid reply or kept a picture open.

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
            crash_error=crash_error,
        )
        call.future.add_done_callback(lambda _: call.close())
        try:
            for original in descriptors:
                call.descriptors.append(os.dup(original))
            self._batcher.submit(call)
        except errors.DeadlineExceeded as late:
            call.fail(late)
        except BaseException:
            call.close()
            raise
        return call.future

    def _check(self, message: Mapping[str, Any], meta: Mapping[str, Any], arrays: Tensors) -> None:
        if (check := self.checks.get(message["function"])) is not None:
            check(message["meta"], meta, arrays)

    @property
    def live(self) -> int:
        return self._batcher.live

    async def close(self) -> None:
        """Fail the queued calls with Overloaded, and end every process.

        A running call is aborted after ABORT_SECONDS. Waits up to OPENING_SECONDS more.
        """
        self._batcher.close(errors.Overloaded("the server is stopping"))
        await close_all(self._instances)

    def _open(self) -> CodecProcess:
        limits = Limits(
            address_space=self.memory_bytes, environment=ENVIRONMENT, confinement=Confinement.CODEC
        )
        with contextlib.ExitStack() as opening:
            try:
                child = Child(
                    TARGET,
                    {},
                    limits=limits,
                    start_timeout=START_SECONDS,
                    check=self._check,
                    spares=self.spares,
                )
                opening.callback(child.close)
                for function in self.warm_ups:
                    try:
                        child.call({"function": function, "meta": {}}, timeout=START_SECONDS)
                    except errors.PaddlepoolError:
                        # Not fatal: the first real call reports the same error to its caller.
                        log.exception("a warm-up failed in a codec process")
            except (ChildDied, errors.PaddlepoolError) as error:
                raise errors.WorkerCrashed(f"a codec process did not start: {error}") from error
            if self.held is None and (missing := [m for m in MEASURES if m not in child.held]):
                log.warning("codec processes are not confined by %s", " nor by ".join(missing))
            self.held = child.held
            opening.pop_all()
        return CodecProcess(child)

    def _on_loss(self, reason: Restart) -> float:
        """Return the seconds to wait before a lost process is replaced.

        A process that was open is replaced at once, so that pictures that kill processes delay no
        other picture. Its loss is reported to `on_restart`.
        """
        if reason in OPENING_FAILURES:
            return self._backoff.delay_after_loss()
        self.on_restart(reason)
        return 0.0


def _on_result(run: Run, reply: Reply) -> None:
    [call] = run.batch.jobs
    if not call.future.done():
        call.future.set_result(reply)


@dataclass(frozen=True, slots=True, kw_only=True)
class Codecs:
    """The codec processes, the limited memory for decoded pictures, and the limits on a picture."""

    pool: CodecPool
    pictures: PictureStore
    limits: PictureLimits = field(default_factory=PictureLimits)

    async def read_picture(
        self, body: bytes, function: str, values: Mapping[str, Any], context: RequestContext
    ) -> Tensors:
        """Decode a picture in a codec process, and return the arrays of `function(pixels, values)`.

        `function` is "module:name" and runs in the same process. It gets the upright picture, uint8
        of shape (height, width, 3), RGB over white, and `values`, which must be JSON values. The
        seconds of the two steps are added to the stages `decode` and `preprocess` of `context`. The
        picture's pixels are subtracted from the caller's quota.

        Raises InputError for a bad picture, QuotaExceeded, and the errors of CodecPool.submit().
        """
        reply = await self.pool.submit(
            READ_PICTURE,
            {"function": function, "values": values, "limits": asdict(self.limits)},
            {"body": np.frombuffer(body, np.uint8)},
            deadline=context.deadline,
            crash_error=errors.ImageUnreadable,
        )
        CALLER.get().spend("pixels", reply.meta["pixels"])
        context.add_seconds(reply.meta["seconds"])
        return reply.arrays


def check_read(call: Mapping[str, Any], meta: Mapping[str, Any], arrays: Tensors) -> None:
    """Raise ValueError if the values of a reply of read_picture() are wrong.

    The arrays are not checked here: RequestContext.infer() does that.
    """
    del arrays
    check_types(meta, {"pixels": int, "seconds": {"decode": float, "preprocess": float}})
    check_pixels(call, meta["pixels"])


def check_pixels(call: Mapping[str, Any], pixels: int) -> None:
    """Raise ValueError unless `pixels` is from 1 to the limit in `call`, a request's values."""
    most = call["limits"]["pixels"]
    if not 0 < pixels <= most:
        raise ValueError(f"a picture of {pixels} pixels, limit {most}")


def check_types(value: Any, expected: Any) -> None:
    """Raise ValueError unless `value` has the form of `expected`.

    `expected` is `int` or `float`, or a list or dict of such forms. A number must have just this
    type, be finite and be at least 0. A list must have as many items, a dict equal keys.
    """
    if isinstance(expected, dict) and type(value) is dict and value.keys() == expected.keys():
        value, expected = [value[key] for key in expected], list(expected.values())
    if isinstance(expected, list) and type(value) is list and len(value) == len(expected):
        for item, kind in zip(value, expected, strict=True):
            check_types(item, kind)
    elif type(value) is not expected or not 0 <= value < math.inf:
        raise ValueError(f"expected {expected}, finite and at least 0")
