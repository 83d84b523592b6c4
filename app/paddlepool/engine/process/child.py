"""The parent's side of a child process; `paddlepool.engine.process.worker` is the child's side.

Predictors and codecs run in children. A failure in one (a native crash, an endless loop, a stop
signal, unlimited memory use) affects only the call in progress.
"""

import contextlib
import json
import logging
import math
import mmap
import os
import select
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import numpy as np
import orjson

from paddlepool.contracts.errors import PaddlepoolError
from paddlepool.contracts.reasons import Restart
from paddlepool.contracts.tensors import Array, Tensors
from paddlepool.engine.process.child_output import OutputLogger
from paddlepool.engine.process.environment import Limits
from paddlepool.engine.process.replies import Check, Reply, parse_message
from paddlepool.engine.process.shared_arrays import Layout, SharedArrays
from paddlepool.engine.process.start import SLOTS, Spares
from paddlepool.engine.process.worker import HEADER_BYTES

CPU_LIMIT_EXCEEDED = -signal.SIGPROF
"""Exit code of a child whose call exceeded the limit of processor time that it set for itself."""


class ChildDied(Exception):
    """The process died or was killed, for this `reason`."""

    def __init__(self, reason: Restart, exit_code: int | None) -> None:
        super().__init__(f"child process ended: {reason} (exit code {exit_code})")
        self.reason = reason


class ChildTimeout(ChildDied):
    """The call exceeded its timeout; the process has been killed.

    `starved` means that the process had less processor time than the timeout, and was ready to run
    or waited for a disk: others delayed it. Without `patience`, `starved` is false: see expect().
    """

    def __init__(self, *, starved: bool = False) -> None:
        super().__init__(Restart.TIMEOUT, -signal.SIGKILL)
        self.starved = starved


def exit_reason(code: int | None) -> Restart:
    """Return why a process has ended, from its exit code; KILLED also if its Child killed it."""
    if code == CPU_LIMIT_EXCEEDED:
        return Restart.TIMEOUT
    # SIGTERM ends a child that is still opening; later the child ignores it.
    killed = code in (-signal.SIGKILL, -signal.SIGTERM)
    return Restart.KILLED if killed else Restart.CRASHED


STOPPED_SECONDS = 0.5
"""A child that stays in state T (stopped) for this long counts as dead: it cannot reply."""
OUTPUT_EVENTS = select.EPOLLIN | select.EPOLLONESHOT
BLOCK_BYTES = 1 << 16
DYING_SECONDS = 0.1
"""How long a process that has closed its socket may take to begin to exit by itself."""
EXIT_SECONDS = 1.0
"""How long it may take from then to its end: on a busy machine, the kernel needs a while."""
EXITING = 4
"""Flag of an exiting process in /proc/PID/stat (PF_EXITING in Linux)."""


class _Sent(NamedTuple):
    """A request that was sent at `time`, with its memory slot and the size of its arrays."""

    slot: int
    time: float
    meta: Mapping[str, Any]
    nbytes: int


@dataclass(slots=True)
class _Wait:
    """Time limits of the oldest request: see expect().

    `deadline` may be extended, but not beyond `last` except by a suspension. `timeout` and
    `cpu_before` are in seconds, the other numbers are values of time.monotonic().
    """

    timeout: float
    deadline: float
    last: float
    cpu_before: float  # processor seconds of the process when the wait began
    checked: float
    patient: bool
    stopped_since: float | None = None


log = logging.getLogger(__name__)


class Child:
    """One process running `target` ("module:function"); owned by one thread at a time.

    `target(init)` runs in the child and returns two things: values, which this object has as
    `ready`, and `handler(meta, arrays, descriptors)`, which answers each call with `(meta,
    arrays)`. A PaddlepoolError of the target or handler is raised here as the same class if that is
    in RAISED_BY_CHILDREN, else as a BackendError. Any other exception becomes a BackendError, whose
    message names only the exception's class and the lines that raised it. `held` lists the MEASURES
    of the child's confinement that are in force. `check` verifies each reply after the opening; the
    process is killed if a reply is malformed or `check` raises ValueError.

    The process is one of `spares`, if any of them has the environment of `limits`, or a new one.

    The constructor blocks until the target is open, at most `start_timeout` seconds besides a
    suspension. Raises as call() does, and OSError for lack of resources; the process is then gone.

    Calls run one after another, in the order they were sent. Up to SLOTS of them may be under way,
    so that the child does not wait for its parent between two calls.
    """

    def __init__(
        self,
        target: str,
        init: Mapping[str, Any],
        *,
        limits: Limits = Limits(),
        start_timeout: float = 120.0,
        check: Check | None = None,
        spares: Spares | None = None,
    ) -> None:
        self._open = False
        self._check: Check | None = None
        with contextlib.ExitStack() as resources:
            self._start(resources, limits, spares or Spares())
            opening = {
                "target": target,
                "init": init,
                "address_space": limits.address_space,
                "confinement": limits.confinement,
                "starts_programs": limits.starts_programs,
                "reading": [str(path) for path in limits.reading],
                "writing": [str(path) for path in limits.writing],
            }
            meta = self.call(opening, timeout=start_timeout).meta
            # Not before: it may have to replace a lost process soon. One that may be suspended
            # keeps its priority until end_suspension(): its time is limited already.
            self._nice = limits.nice
            if limits.suspension is None or limits.idle:
                self._lower_priority()
            self.ready: Mapping[str, Any] = meta["ready"]
            self.held: tuple[str, ...] = tuple(meta["held"])
            self._check, self._open = check, True
            self._resources = resources.pop_all()

    def _start(self, resources: contextlib.ExitStack, limits: Limits, spares: Spares) -> None:
        """Take or start a process. `resources` gets all that must be closed, even on an error."""
        self._under_way: deque[_Sent] = deque()
        self._wait = _Wait(0.0, 0.0, 0.0, 0.0, 0.0, patient=False)
        self._put: tuple[int, Layout, int] = (0, [], 0)
        self._reply: Reply | None = None  # with views of memory that the child can still write
        self._output: IO[bytes] | None = None
        self._events = resources.enter_context(select.epoll())
        self._process, self._socket, blocks, channels = spares.take(limits.environment)
        resources.enter_context(channels)
        shared = [SharedArrays(block) for block in blocks]
        self._slots = list(zip(shared[::2], shared[1::2], strict=True))
        resources.callback(self._slots.clear)  # unmaps them
        output = cast(IO[bytes], self._process.stderr)
        self._logger = OutputLogger(self._process.pid)
        resources.callback(self._logger.end)
        resources.callback(self._read_output)
        self._suspension = limits.suspension
        resources.callback(self._process.wait)
        resources.callback(self.kill)
        self.pid = self._process.pid
        self._arrival = select.poll()
        self._arrival.register(self._socket, select.POLLIN)
        self._events.register(self._socket, select.EPOLLIN)
        self._output = output
        os.set_blocking(output.fileno(), False)
        self._events.register(output, OUTPUT_EVENTS)
        if limits.idle:
            # Set before the child has a second thread, as threads inherit the policy. If a sandbox
            # forbids the policy, niceness alone must be enough.
            with contextlib.suppress(OSError):
                os.sched_setscheduler(self.pid, os.SCHED_IDLE, os.sched_param(0))
        if self._suspension is not None:
            self._suspension.add(self._process)
        # Kept open: each run reads them, and opening them by path costs ten times as much.
        self._stat = resources.enter_context(FileIO(f"/proc/{self.pid}/stat"))
        self._statm = resources.enter_context(FileIO(f"/proc/{self.pid}/statm"))

    def _lower_priority(self) -> None:
        """Lower the priority of every thread: on Linux, each thread has its own niceness.

        The child cannot do it itself: its system-call filter rejects it.
        """
        priority = os.getpriority(os.PRIO_PROCESS, self.pid) + self._nice
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            with contextlib.suppress(ProcessLookupError):
                os.setpriority(os.PRIO_PROCESS, int(task.name), priority)

    def fileno(self) -> int:
        """Return a descriptor that is readable after a reply, output or the process's end."""
        return self._events.fileno()

    def call(
        self,
        meta: Mapping[str, Any],
        arrays: Tensors | None = None,
        *,
        descriptors: Sequence[int] = (),
        timeout: float,
    ) -> Reply:
        """Send one request and block until its reply. Raises as put(), send() and receive() do."""
        self.put(arrays or {})
        self.send(meta, descriptors=descriptors)
        return self.receive(timeout=timeout)

    def put(self, arrays: Tensors) -> None:
        """Copy the next request's arrays into shared memory; fewer than SLOTS may be under way.

        Raises the errors of SharedArrays.write().
        """
        # Requests take turns, so the slot after that of the newest one is free.
        slot = (self._under_way[-1].slot + 1) % SLOTS if self._under_way else 0
        size = sum([array.nbytes for array in arrays.values()])
        self._put = slot, self._slots[slot][0].write(arrays), size

    def send(self, meta: Mapping[str, Any], *, descriptors: Sequence[int] = ()) -> None:
        """Send what was put(); do not wait for the reply.

        Raises ChildDied; the request then never began. The child gets duplicates of the file
        `descriptors`.
        """
        if not self._under_way and self._arrival.poll(0):
            raise self._died() if self._peer_closed() else self._kill_corrupt("unrequested reply")
        slot, layout, size = self._put
        header = encoded({"meta": meta, "arrays": layout, "slot": slot})
        if (length := len(header)) > HEADER_BYTES:
            raise ValueError(f"this is a bug: a header of {length} bytes, limit {HEADER_BYTES}")
        try:
            if descriptors:
                socket.send_fds(self._socket, [header], list(descriptors), socket.MSG_DONTWAIT)
            else:
                self._socket.send(header, socket.MSG_DONTWAIT)
        except BlockingIOError:  # the child replied to earlier requests without reading them
            raise self._kill_corrupt("it does not read requests") from None
        except (BrokenPipeError, ConnectionResetError):
            raise self._died() from None
        self._under_way.append(_Sent(slot, time.monotonic(), meta, size))

    def receive(self, *, timeout: float) -> Reply:
        """Wait for the oldest request's reply. Raises like check_timeout() and poll_reply()."""
        self.expect(timeout=timeout)
        while True:
            if self._events.poll(self.check_timeout()) and self.poll_reply() is not None:
                return self.fetch()

    def expect(self, *, timeout: float, patience: float = 0.0) -> None:
        """Set the timeout of the oldest request under way, in seconds from now.

        After the timeout, a process that is ready to run or waits for a disk, and has had less
        processor time than `timeout`, gets up to `patience` seconds more: the machine is busy.
        """
        now = time.monotonic()
        cpu = self.cpu_seconds() if patience else 0.0
        self._wait = _Wait(timeout, now + timeout, now + timeout + patience, cpu, now, patience > 0)

    def check_timeout(self) -> float:
        """Check on the oldest request and return the seconds until the next check is due.

        Raises ChildTimeout, or ChildDied with STOPPED if the process was stopped for
        STOPPED_SECONDS; the process has then been killed. While its suspension is held, lets the
        process run briefly, blocking, and extends the timeout by all the time since the last check.
        """
        wait, now = self._wait, time.monotonic()
        if self._suspension is not None and self._suspension.held:
            self._suspension.run_briefly(self._process)
            now = time.monotonic()
            wait.deadline += now - wait.checked
            wait.stopped_since = None
        elif now >= wait.deadline and self._arrival.poll(0):
            return 0.001  # the reply came in time; only this thread was late
        elif now >= wait.deadline:
            used = self.cpu_seconds() - wait.cpu_before if wait.patient else math.inf
            starved = used < wait.timeout and self._state() in "RD"
            if not starved or now >= wait.last:
                self.kill()
                raise ChildTimeout(starved=starved)
            wait.deadline = min(now + wait.timeout - used, wait.last)
        elif self._state() != "T":
            wait.stopped_since = None
        elif wait.stopped_since is None:
            wait.stopped_since = now
        elif now - wait.stopped_since >= STOPPED_SECONDS:
            self.kill()
            raise ChildDied(Restart.STOPPED, -signal.SIGKILL)
        wait.checked = now
        self._watch_output()
        suspension = self._suspension
        interval = STOPPED_SECONDS / 2 if suspension is None else suspension.pause_seconds
        return max(0.001, min(interval, wait.deadline - now))

    def poll_reply(self) -> int | None:
        """Read and check the oldest reply; return the bytes of its request and reply together.

        Returns None until it arrives, and logs what the process has printed. Raises ChildDied if
        the process has died, or was killed for a malformed reply; later requests then never began.
        Also raises the error of the handler, or a PaddlepoolError of `check`; the request has then
        ended, and the process continues.
        """
        try:
            received = self._socket.recv(HEADER_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:  # the child has printed something
            self._events.poll(0)  # further output gives no event until the next _watch_output()
            self._read_output()
            return None
        except (BrokenPipeError, ConnectionResetError):
            raise self._died() from None
        if not received and self._peer_closed():
            raise self._died()
        if not self._under_way:
            raise self._kill_corrupt("unrequested reply")
        request = self._under_way[0]
        try:
            message = parse_message(received, opening=not self._open)
            if isinstance(message, Exception):
                self._under_way.popleft()
            else:
                views = self._slots[request.slot][1].read(message.layout)
                if self._check is not None:
                    self._check(request.meta, message.meta, views)
                seconds = min(message.seconds, time.monotonic() - request.time)
                self._reply = Reply(message.meta, views, seconds)
                return request.nbytes + sum([view.nbytes for view in views.values()])
        except ValueError as fault:
            raise self._kill_corrupt(str(fault)) from None
        except PaddlepoolError:
            self._under_way.popleft()
            raise
        try:
            raise message
        finally:
            del message  # breaks a reference cycle with its traceback

    def fetch(self) -> Reply:
        """Return the reply that poll_reply() read, copied out of shared memory.

        Ends the request and frees its memory slot.
        """
        reply, self._reply = self._reply, None
        if reply is None:
            raise RuntimeError("this is a bug: no reply was received")
        owned: dict[str, Array] = {name: np.array(view) for name, view in reply.arrays.items()}
        slot = self._under_way.popleft().slot
        for block in self._slots[slot]:
            block.trim()
        return Reply(reply.meta, owned, reply.seconds)

    def _read_output(self) -> None:
        """Log one block of output; the next one is read only after check_timeout() or failure().

        This limits the cost of a process that prints without end. A child never inherits this
        process's standard error: it could read a pipe or a terminal through it, or truncate a file.
        """
        if self._output is None:
            return
        with contextlib.suppress(BlockingIOError):
            block = os.read(self._output.fileno(), BLOCK_BYTES)
            self._logger.add(block)
            if not block:
                self._events.unregister(self._output)
                self._output = None

    def _watch_output(self) -> None:
        if self._output is not None:
            self._events.modify(self._output, OUTPUT_EVENTS)

    def _died(self) -> ChildDied:
        """Return the error to raise after the socket was closed; kill the process if it runs on."""
        for seconds in (DYING_SECONDS, EXIT_SECONDS):
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._process.wait(timeout=seconds)
                return ChildDied(exit_reason(code), code)
            status = self._status()
            if len(status) > 6 and not int(status[6]) & EXITING:
                break
        self.kill()  # the child has closed its socket but still runs
        return ChildDied(Restart.CORRUPT, -signal.SIGKILL)

    def _peer_closed(self) -> bool:
        """Whether the child closed its socket. recv() also returns nothing for an empty message."""
        return any(events & select.POLLHUP for _, events in self._arrival.poll(0))

    def _kill_corrupt(self, fault: str) -> ChildDied:
        """Log `fault` and kill the process, which may be compromised; return the error to raise."""
        log.error("child process %d is killed: invalid answer: %s", self.pid, fault)
        self.kill()
        return ChildDied(Restart.CORRUPT, -signal.SIGKILL)

    def failure(self) -> Restart | None:
        """Return why an idle child can handle no further call, or None.

        The reason is CRASHED, KILLED, TIMEOUT or STOPPED; a stopped child is not killed. Costs up
        to three system calls. During a call, use check_timeout() and poll_reply() instead.
        """
        code = self._process.poll()
        if code is not None:
            return exit_reason(code)
        self._watch_output()
        stopped = self._suspension is None and self._state() == "T"
        return Restart.STOPPED if stopped else None

    def resident_bytes(self) -> int:
        """Resident set size in bytes; 0 if the process is gone. May be called in any thread."""
        try:
            return int(os.pread(self._statm.fileno(), 128, 0).split()[1]) * mmap.PAGESIZE
        except (OSError, IndexError, ValueError):  # ValueError: the file is closed
            return 0

    def cpu_seconds(self) -> float:
        """Return the user and system time of all threads of the process; 0 if it is gone."""
        return sum(map(int, self._status()[11:13])) / os.sysconf("SC_CLK_TCK")

    def _state(self) -> str:
        """Return the state as a letter: R (runs), D (waits for a disk), T (stopped), X (gone), …"""
        return self._status()[0].decode("ascii")

    def _status(self) -> list[bytes]:
        """Return the fields of /proc/PID/stat from the state on; only X if the process is gone."""
        try:
            return os.pread(self._stat.fileno(), 512, 0).rpartition(b")")[2].split()
        except (OSError, ValueError):
            return [b"X"]

    def end_suspension(self) -> None:
        """Remove the process from its suspension, if it has one, and lower its priority."""
        if self._suspension is not None:
            self._lower_priority()
            self._suspension.discard(self._process)
            self._suspension = None

    def kill(self) -> None:
        """Kill the process without waiting for its end."""
        if self._suspension is not None:
            self._suspension.discard(self._process)
        self._process.kill()

    def close(self) -> None:
        """Kill the process, wait for its end, log its last output and free the shared memory.

        Safe to call twice.
        """
        self._resources.close()


def encoded(message: Mapping[str, Any]) -> bytes:
    """Return a message as JSON. NaN and infinity become null. Raises TypeError for no JSON."""
    try:
        return orjson.dumps(message)
    except TypeError:  # a text with a lone surrogate, such as a path, or a long integer
        return json.dumps(message).encode()


class ChildWorker:
    """Base of a `paddlepool.contracts.ports.Worker` in a child process; subclasses add the rest."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._failure: Restart | None = None
        self.pid = child.pid
        self.fileno = child.fileno
        self.resident_bytes = child.resident_bytes
        self.abort, self.close = child.kill, child.close

    def check_timeout(self) -> float:
        try:
            return self._child.check_timeout()
        except ChildDied as died:
            raise self._run_error(died) from None

    def _run_error(self, died: ChildDied) -> Exception:
        """Record why the process died; return the error to raise for the request under way."""
        raise NotImplementedError

    def failure(self) -> Restart | None:
        return self._failure or self._child.failure()
