"""A bounded queue in front of codec processes; each runs one function at a time and can be killed.

A function that crashes, hangs or runs out of memory costs its own call and its process, which is
replaced at once; its neighbours and the queue do not notice.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from app.codecs.call import Call
from app.contracts.errors import BackendError, Overloaded, PaddlepoolError, WorkerCrashed
from app.contracts.ports import Clock
from app.contracts.tensors import Tensors
from app.process.child import Child, ChildDied, Limits, Reply

TARGET = "app.codecs.sandbox:open_sandbox"
MEMORY_LIMIT = 1536 << 20
START_SECONDS = 60.0
RETRY_SECONDS = 1.0

ENVIRONMENT = {
    # By default glibc gives a picture's memory back after each step and takes it anew, zeroed page
    # by page, for the next. Blocks of up to 32 MiB stay.
    "GLIBC_TUNABLES": ":".join(
        f"glibc.malloc.{setting}"
        for setting in ("mmap_threshold=33554432", "trim_threshold=67108864", "top_pad=16777216")
    ),
}

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """Counts for metrics: processes wanted and alive, calls waiting, processes replaced so far."""

    count: int
    live: int
    queued: int
    restarts: int


class ChildPool:
    """`count` codec processes, one thread driving each. Its methods are safe in any thread.

    `memory_bytes` is the address space that each may have, its libraries included.
    `on_restart` hears why a process was replaced (CODEC_RESTARTS); it must not block or raise.
    """

    def __init__(
        self,
        *,
        count: int,
        queue_size: int = 32,
        wall_seconds: float = 5.0,
        memory_bytes: int = MEMORY_LIMIT,
        on_restart: Callable[[str], None] | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._queue_size = queue_size
        self._wall_seconds = wall_seconds
        self._limits = Limits(address_space=memory_bytes, environment=ENVIRONMENT)
        self._on_restart = on_restart
        self._clock = clock
        self._changed = threading.Condition()
        self._calls: deque[Call] = deque()
        self._warm_ups: list[str] = []
        self._warmed = [0] * count
        self._children: list[Child | None] = [None] * count
        self._restarts = 0
        self._mean_seconds = 0.05
        self._closing = False
        self._threads = [
            threading.Thread(target=self._drive, args=(slot,), name=f"codec-{slot}", daemon=True)
            for slot in range(count)
        ]
        for thread in self._threads:
            thread.start()

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
    ) -> Future[Reply]:
        """Run `function(meta, arrays, descriptors)` ("module:name") in a codec process.

        Raises Overloaded when the queue is full or too slow for the deadline. An `urgent` call
        (our own arrays, work already paid for, such as encoding a result) goes first, does not
        count, and may run until its deadline; all others end at the wall limit, of which the time
        does not count that others keep them from running. The future raises what the function
        raised, DeadlineExceeded, or `blame` when the process crashed, ran out of memory or took
        longer than the wall limit: ImageUnreadable for uploaded bytes, because a picture that
        kills its decoder is the picture's fault. Descriptors are duplicated: the caller may close
        its own at any time. Cancelling the future drops a call that is still queued.
        """
        future: Future[Reply] = Future()
        with self._changed:
            self._admit(urgent, deadline)
            call = Call(
                function=function,
                meta=meta,
                arrays=arrays or {},
                descriptors=tuple(map(os.dup, descriptors)),
                deadline=deadline,
                wall_seconds=math.inf if urgent else self._wall_seconds,
                blame=blame,
                future=future,
            )
            if urgent:
                self._calls.appendleft(call)
            else:
                self._calls.append(call)
            self._changed.notify_all()
        # Not the call itself: a future keeps its callbacks, and the two would keep each other,
        # pictures and all, until the garbage collector comes by.
        future.add_done_callback(partial(self._drop_cancelled, weakref.ref(call)))
        return future

    def warm_up(self, function: str) -> None:
        """Run `function({}, {}, ())` once in every process, now and in each replacement.

        Returns when all have run it, so that no request pays for an import or a first call.
        """
        with self._changed:
            if function not in self._warm_ups:
                self._warm_ups.append(function)
            wanted = self._warm_ups.index(function) + 1
            self._changed.notify_all()
            if not self._changed.wait_for(
                lambda: self._closing or min(self._warmed) >= wanted, START_SECONDS
            ):
                raise BackendError(f"the codec processes were not ready in {START_SECONDS:.0f} s")

    def status(self) -> PoolStatus:
        with self._changed:
            live = sum(child is not None for child in self._children)
            return PoolStatus(len(self._children), live, len(self._calls), self._restarts)

    def pids(self) -> tuple[int, ...]:
        """The processes alive now, to read their memory."""
        with self._changed:
            return tuple(child.pid for child in self._children if child is not None)

    def close(self) -> None:
        """Cancel what waits, end every process, and return when all threads have ended."""
        with self._changed:
            self._closing = True
            running = [child for child in self._children if child is not None]
            self._changed.notify_all()
        for child in running:
            child.kill()
        for thread in self._threads:
            thread.join()
        for call in tuple(self._calls):
            call.future.cancel()

    def _admit(self, urgent: bool, deadline: float) -> None:
        if self._closing:
            raise Overloaded("the server is stopping", retry_after=1.0)
        waiting = len(self._calls)
        if urgent or not waiting:
            return
        wait = waiting * self._mean_seconds / len(self._children)
        left = deadline - self._clock()
        if wait + self._mean_seconds > left:
            raise Overloaded(
                f"the pictures before this one need about {wait:.2f} s, "
                f"the deadline leaves {left:.2f} s",
                retry_after=wait,
                limit=round(left, 3),
                received=round(wait + self._mean_seconds, 3),
            )
        if waiting >= self._queue_size:
            raise Overloaded(
                f"{waiting} pictures are waiting to be opened; the limit is {self._queue_size}",
                retry_after=wait,
                limit=self._queue_size,
                received=waiting,
            )

    def _drop_cancelled(self, waiting: weakref.ref[Call], future: Future[Reply]) -> None:
        if not future.cancelled() or (call := waiting()) is None:
            return
        with self._changed:
            try:
                self._calls.remove(call)
            except ValueError:
                return  # a driving thread has it already and will close it
        call.close()

    def _drive(self, slot: int) -> None:
        child: Child | None = None
        try:
            while True:
                task = self._next(slot)
                if child is None:
                    child = self._open(slot)
                elif task is not None and (reason := self._run(slot, child, task)):
                    self._discard(slot, child, reason)
                    child = None
                del task  # its pictures must not stay while this waits for the next
        except _Closing:
            if child is not None:
                child.close()

    def _next(self, slot: int) -> Call | str | None:
        """Wait for what to do next: open a process (None), run a warm-up (its name), or a call."""
        with self._changed:
            while not self._closing:
                if self._children[slot] is None:
                    return None
                if self._warmed[slot] < len(self._warm_ups):
                    return self._warm_ups[self._warmed[slot]]
                if self._calls:
                    return self._calls.popleft()
                self._changed.wait()
        raise _Closing

    def _open(self, slot: int) -> Child | None:
        try:
            child = Child(TARGET, {}, limits=self._limits, start_timeout=START_SECONDS)
        except (ChildDied, PaddlepoolError, OSError):
            log.exception("a codec process did not start; trying again")
            with self._changed:
                self._changed.wait_for(lambda: self._closing, RETRY_SECONDS)
            return None
        with self._changed:
            self._children[slot] = child
        return child

    def _run(self, slot: int, child: Child, task: Call | str) -> str | None:
        """Do the task; returns why the process must be replaced, or None."""
        if isinstance(task, str):
            return self._warm(slot, child, task)
        if reason := child.failure():  # it died while idle, which is not this picture's fault
            with self._changed:
                self._calls.appendleft(task)
            return reason
        return self._serve(task, child)

    def _warm(self, slot: int, child: Child, function: str) -> str | None:
        try:
            child.call({"function": function, "meta": {}}, timeout=START_SECONDS)
        except ChildDied as died:
            log.exception("the warm-up %s ended a codec process", function)
            with self._changed:
                self._changed.wait_for(lambda: self._closing, RETRY_SECONDS)
            return died.reason
        except PaddlepoolError:
            # Not fatal: the first real call shows the same fault to somebody who waits for it.
            log.exception("the warm-up %s failed in a codec process", function)
        with self._changed:
            self._warmed[slot] += 1
            self._changed.notify_all()
        return None

    def _serve(self, call: Call, child: Child) -> str | None:
        started = self._clock()
        try:
            return call.run(child, now=started)
        finally:
            seconds = self._clock() - started
            with self._changed:
                self._mean_seconds += 0.1 * (seconds - self._mean_seconds)

    def _discard(self, slot: int, child: Child, reason: str) -> None:
        with self._changed:
            self._children[slot] = None
            self._warmed[slot] = 0
            closing = self._closing
            self._restarts += not closing
        child.close()
        if not closing:
            log.warning("replacing a codec process: %s", reason)
            if self._on_restart:
                self._on_restart(reason)


class _Closing(Exception):
    """Ends a driving thread."""
