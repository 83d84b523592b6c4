"""A child process that can be called with arrays, limited, timed out and killed: the parent's side.

Predictors and codecs run in such children. Whatever happens in one (a native crash, an endless
loop, a stop signal, memory without end) costs the call that was in it and nothing else.
The other side of the wire is `app.engine.process.worker`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import mmap
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from app.contracts.reasons import Restart
from app.contracts.tensors import Array, Tensors
from app.engine.process.answers import Check, read_answer
from app.engine.process.answers import Reply as Reply
from app.engine.process.environment import (
    Limits as Limits,  # whoever starts a child takes it from here
)
from app.engine.process.environment import child_environment
from app.engine.process.printed import pass_on
from app.engine.process.shared_arrays import Layout, SharedArrays
from app.engine.process.suspension import HELD_SECONDS
from app.engine.process.worker import ARGUMENTS, HEADER_BYTES, SLOTS

FROM_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM)
"""Nothing that a call does ends in one of these; out of memory, systems send TERM first or KILL."""


OUT_OF_TIME = -signal.SIGPROF
"""A call exceeded the limit of processor time that the process had set for itself."""


class ChildDied(Exception):
    """The process ended, or was ended, while it was being called."""

    def __init__(self, reason: Restart, exit_code: int | None) -> None:
        super().__init__(f"child process ended: {reason} (exit code {exit_code})")
        self.reason = reason
        self.exit_code = exit_code


class ChildTimeout(ChildDied):
    """The call took longer than its timeout; the process has been killed.

    `starved`: it would have gone on, but others had the processors.
    """

    def __init__(self, *, starved: bool = False) -> None:
        super().__init__(Restart.TIMEOUT, -signal.SIGKILL)
        self.starved = starved


def ended(code: int | None) -> Restart:
    """Why a process ended that we have not killed, by its exit code."""
    if code == OUT_OF_TIME:
        return Restart.TIMEOUT
    return Restart.KILLED if code in FROM_OUTSIDE else Restart.CRASHED


class ProcStatus:
    """Reads /proc/PID. Its files are kept open: they are read before every run, and opening them by
    path would cost ten times as much. Also read by threads that do not own the child."""

    def __init__(self, pid: int) -> None:
        """Raises OSError."""
        self._stat = self._statm = -1
        try:
            self._stat = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
            self._statm = os.open(f"/proc/{pid}/statm", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self.close()
            raise

    def state(self) -> str:
        """One letter: R runs, D waits for a disk, T is stopped, X is gone."""
        return self._fields()[0].decode("ascii")

    def cpu_seconds(self) -> float:
        """User and system time of all its threads."""
        return sum(map(int, self._fields()[11:13])) / os.sysconf("SC_CLK_TCK")

    def resident_bytes(self) -> int:
        """Resident set size in bytes; 0 when the process is gone."""
        try:
            pages = int(os.pread(self._statm, 128, 0).split()[1])
        except (OSError, IndexError, ValueError):
            return 0
        return pages * mmap.PAGESIZE

    def close(self) -> None:
        # Forgotten before they are closed: nobody must read what is opened next under their number.
        stat, self._stat = self._stat, -1
        statm, self._statm = self._statm, -1
        for descriptor in (stat, statm):
            if descriptor != -1:
                os.close(descriptor)

    def _fields(self) -> list[bytes]:
        """/proc/PID/stat from the state on."""
        try:
            return os.pread(self._stat, 512, 0).rpartition(b")")[2].split()
        except OSError:
            return [b"X"]


STOPPED_SECONDS = 0.5
"""A child in state T (stopped) for this long counts as dead: nothing in it will ever answer."""
PRINTED = select.EPOLLIN | select.EPOLLONESHOT
DYING_SECONDS = 0.1
"""How long a process that has closed its socket may take to end by itself."""


class _UnderWay(NamedTuple):
    """A request that was sent: the memory it uses, when, with what, and the bytes of its arrays."""

    slot: int
    sent: float
    meta: Mapping[str, Any]
    nbytes: int


@dataclass(slots=True)
class _Wait:
    """The oldest request's time: `timeout` in seconds, all else values of time.monotonic()."""

    timeout: float
    deadline: float
    last: float
    had: float  # processor seconds of the process when the wait began
    looked: float
    patient: bool
    stopped_since: float | None = None


@dataclass(frozen=True, slots=True)
class Heard:
    """A reply that has arrived; `views` lie in memory that the child can write. `nbytes` are those
    of the reply and of its request, which both are given back to the system if they are large."""

    meta: Mapping[str, Any]
    views: Tensors
    seconds: float
    nbytes: int


log = logging.getLogger(__name__)


class Child:
    """One process running `target` ("module:function"); owned by one thread at a time.

    `target(init)` runs in the child and returns `handler(meta, arrays, descriptors)`, which
    returns `(meta, arrays)`. A PaddlepoolError it raises is raised again here as the same class;
    any other exception becomes a BackendError, its text in the log only. `ready` is what opening
    returned, `held` which MEASURES of its confinement are in force. What `check` refuses of later
    answers ends the process like every answer that is none.

    Calls run one after another, in the order they were sent. SLOTS of them may be under way, so
    that the child need not wait for its parent between two calls.
    """

    def __init__(
        self,
        target: str,
        init: Mapping[str, Any],
        *,
        limits: Limits = Limits(),
        start_timeout: float = 120.0,
        check: Check | None = None,
    ) -> None:
        self._open = False
        self._check: Check | None = None
        with contextlib.ExitStack() as opened:
            self._start(opened, limits)
            opening = {
                "target": target,
                "init": init,
                "address_space": limits.address_space,
                "confinement": limits.confinement,
                "starts_programs": limits.starts_programs,
                "reading": [str(path) for path in limits.reading],
                "writing": [str(path) for path in limits.writing],
            }
            if limits.suspension is not None:
                self._give_way(limits.nice)
            opened_meta = self.call(opening, timeout=start_timeout).meta
            if limits.suspension is None:  # a lost child must be replaced soon
                self._give_way(limits.nice)
            self.ready: Mapping[str, Any] = opened_meta["ready"]
            self.held: tuple[str, ...] = tuple(opened_meta["held"])
            self._check = check
            self._open = True
            self._opened = opened.pop_all()

    def _start(self, opened: contextlib.ExitStack, limits: Limits) -> None:
        """Start the process; all that it takes is closed with `opened`, also where this fails."""
        self._under_way: deque[_UnderWay] = deque()
        self._wait = _Wait(0.0, 0.0, 0.0, 0.0, 0.0, patient=False)
        self._put: tuple[int, Layout, int] = (0, [], 0)
        self._printed: IO[bytes] | None = None
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        opened.enter_context(self._socket)
        with contextlib.ExitStack() as given:
            given.enter_context(theirs)
            lifeline, self._lifeline = os.pipe()
            opened.callback(os.close, self._lifeline)
            given.callback(os.close, lifeline)

            def shared(name: str) -> SharedArrays:
                created = SharedArrays.create(name)
                opened.callback(created.close)
                return created

            self._slots = [(shared("requests"), shared("replies")) for _ in range(SLOTS)]
            blocks = [block.descriptor for slot in self._slots for block in slot]
            inherited = (theirs.fileno(), lifeline, *blocks)
            command = [sys.executable, *ARGUMENTS, *map(str, inherited)]
            self._process = subprocess.Popen(
                command,
                pass_fds=inherited,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=child_environment(limits.environment),
            )
        opened.callback(self._end_printed)
        self._suspension = limits.suspension
        opened.callback(self._process.wait)
        opened.callback(self.kill)
        self.pid = self._process.pid
        self._arrival = select.poll()
        self._arrival.register(self._socket, select.POLLIN)
        self._events = opened.enter_context(select.epoll())
        self._events.register(self._socket, select.EPOLLIN)
        if self._process.stderr is not None:
            self._printed = self._process.stderr
            os.set_blocking(self._printed.fileno(), False)
            self._events.register(self._printed, PRINTED)
        if limits.idle:
            # Before it has a second thread: threads inherit the policy. Where a sandbox forbids it,
            # its niceness alone must do.
            with contextlib.suppress(OSError):
                os.sched_setscheduler(self.pid, os.SCHED_IDLE, os.sched_param(0))
        if self._suspension is not None:
            self._suspension.add(self._process)
        self._status = ProcStatus(self.pid)
        opened.callback(self._status.close)

    def _give_way(self, nice: int) -> None:
        """Lower the priority of every thread: Linux counts niceness for each one of them.

        The child cannot do it itself: its filter of system calls refuses it.
        """
        priority = os.getpriority(os.PRIO_PROCESS, self.pid) + nice
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            with contextlib.suppress(ProcessLookupError):
                os.setpriority(os.PRIO_PROCESS, int(task.name), priority)

    def fileno(self) -> int:
        """Readable when hear() has something to do: a reply, the end, or printed text."""
        return self._events.fileno()

    def call(
        self,
        meta: Mapping[str, Any],
        arrays: Tensors | None = None,
        *,
        descriptors: Sequence[int] = (),
        timeout: float,
    ) -> Reply:
        """Send one request and block until its reply; see send() and receive()."""
        self.put(arrays or {})
        self.send(meta, descriptors=descriptors)
        return self.receive(timeout=timeout)

    def put(self, arrays: Tensors) -> None:
        """Copy the arrays of the next request into the memory shared with the process."""
        slot = next(n for n in range(SLOTS) if all(n != each.slot for each in self._under_way))
        size = sum(array.nbytes for array in arrays.values())
        self._put = slot, self._slots[slot][0].write(arrays), size

    def send(self, meta: Mapping[str, Any], *, descriptors: Sequence[int] = ()) -> None:
        """Send the request whose arrays were put, without waiting for anything.

        Raises ChildDied: it then never began.
        """
        if not self._under_way and self._arrives(0.0):
            raise self._died() if self._hung_up() else self._not_believed("it spoke unasked")
        slot, layout, size = self._put
        header = json.dumps({"meta": meta, "arrays": layout, "slot": slot}).encode()
        if len(header) > HEADER_BYTES:
            raise ValueError(
                f"this is a bug: a header of {len(header)} bytes, limit {HEADER_BYTES}"
            )
        try:
            if descriptors:
                socket.send_fds(self._socket, [header], list(descriptors), socket.MSG_DONTWAIT)
            else:
                self._socket.send(header, socket.MSG_DONTWAIT)
        except BlockingIOError:  # it has answered earlier requests without taking them
            raise self._not_believed("it reads nothing") from None
        except (BrokenPipeError, ConnectionResetError):
            raise self._died() from None
        self._under_way.append(_UnderWay(slot, time.monotonic(), meta, size))

    def _arrives(self, seconds: float) -> bool:
        """Whether within so many seconds hear() has something to say: a reply, or the end."""
        return bool(self._arrival.poll(max(0.0, 1000 * seconds)))

    def receive(self, *, timeout: float) -> Reply:
        """Block until the reply to the oldest request under way; see expect() and hear()."""
        self.expect(timeout=timeout)
        while True:
            if self._events.poll(self.look()) and (heard := self.hear()) is not None:
                return self.fetch(heard)

    def expect(self, *, timeout: float, patience: float = 0.0) -> None:
        """Give the oldest request under way `timeout` seconds from now.

        A process that wants to run and has had less processor time than that gets more, up to
        `patience` seconds: it is not slow, the machine is busy.
        """
        now = time.monotonic()
        had = self._cpu_seconds() if patience else 0.0
        self._wait = _Wait(timeout, now + timeout, now + timeout + patience, had, now, patience > 0)

    def look(self) -> float:
        """Check on a request under way, and return the seconds until the next check is due.

        Raises ChildTimeout or ChildDied (STOPPED); the process is then gone for good.
        """
        wait, now = self._wait, time.monotonic()
        if self._suspension is not None and self._suspension.held:
            self._suspension.run_briefly(self._process)
            now = time.monotonic()
            wait.deadline += now - wait.looked
            wait.stopped_since = None
        elif now >= wait.deadline and self._arrives(0.0):
            return 0.001  # just in time, and this thread was late
        elif now >= wait.deadline:
            lacking = wait.timeout - (self._cpu_seconds() - wait.had) if wait.patient else 0.0
            starved = lacking > 0.0 and self._status.state() in "RD"
            if not starved or now >= wait.last:
                self.kill()
                raise ChildTimeout(starved=starved)
            wait.deadline = min(now + lacking, wait.last)
        elif self._status.state() != "T":
            wait.stopped_since = None
        elif wait.stopped_since is None:
            wait.stopped_since = now
        elif now - wait.stopped_since >= STOPPED_SECONDS:
            self.kill()
            raise ChildDied(Restart.STOPPED, -signal.SIGKILL)
        wait.looked = now
        self._listen()
        most = STOPPED_SECONDS / 2 if self._suspension is None else HELD_SECONDS
        return max(0.001, min(most, wait.deadline - now))

    def hear(self) -> Heard | None:
        """The oldest reply, checked, whose arrays still lie in shared memory; None before it comes.

        Raises ChildDied (the process is then gone for good, and requests behind that one never
        began), or what the handler raised (the process lives on).
        """
        try:
            received = self._socket.recv(HEADER_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:  # it has printed something
            self._events.poll(0)  # what it prints further is not heard of until the next _listen()
            self._pass_on()
            return None
        except (BrokenPipeError, ConnectionResetError):
            raise self._died() from None
        if not received and self._hung_up():
            raise self._died()
        if not self._under_way:
            raise self._not_believed("it spoke unasked")
        slot, sent, asked, size = self._under_way[0]
        try:
            answer = read_answer(received, opening=not self._open)
            if isinstance(answer, Exception):
                self._under_way.popleft()
            else:
                views = self._slots[slot][1].read(answer.layout)
                if self._check is not None:
                    self._check(asked, answer.meta, views)
                seconds = min(answer.seconds, time.monotonic() - sent)
                nbytes = size + sum(view.nbytes for view in views.values())
                return Heard(answer.meta, views, seconds, nbytes)
        except ValueError as fault:
            raise self._not_believed(str(fault)) from None
        try:
            raise answer
        finally:
            del answer  # this frame is in its traceback: each would keep the other

    def fetch(self, heard: Heard) -> Reply:
        """The reply, with arrays copied out of shared memory; its place is free for a request."""
        owned: dict[str, Array] = {name: np.array(view) for name, view in heard.views.items()}
        slot = self._under_way.popleft().slot
        for block in self._slots[slot]:
            block.trim()
        return Reply(heard.meta, owned, heard.seconds)

    def _pass_on(self) -> None:
        """Copy a block of what was printed; the next one after another look() or failure().

        So a process that prints without end costs this one next to nothing.
        """
        if self._printed is not None and not pass_on(self._printed):
            self._events.unregister(self._printed)
            self._printed = None

    def _listen(self) -> None:
        if self._printed is not None:
            self._events.modify(self._printed, PRINTED)

    def _end_printed(self) -> None:
        """Copy its last words."""
        if self._printed is not None:
            pass_on(self._printed)
        if self._process.stderr is not None:
            self._process.stderr.close()

    def _cpu_seconds(self) -> float:
        return self._status.cpu_seconds()

    def _died(self) -> ChildDied:
        try:
            code = self._process.wait(timeout=DYING_SECONDS)
        except subprocess.TimeoutExpired:  # it lives, and has closed its socket
            self.kill()
            return ChildDied(Restart.CORRUPT, -signal.SIGKILL)
        return ChildDied(ended(code), code)

    def _hung_up(self) -> bool:
        """Whether its end of the socket is closed; a message of no bytes looks the same to recv."""
        return any(events & select.POLLHUP for _, events in self._arrival.poll(0))

    def _not_believed(self, fault: str) -> ChildDied:
        """Treat the process as compromised: kill it."""
        log.error("child process %d is ended: its answer is not one: %s", self.pid, fault)
        self.kill()
        return ChildDied(Restart.CORRUPT, -signal.SIGKILL)

    def failure(self) -> Restart | None:
        """Why an idle child can answer no further call (CRASHED, KILLED, STOPPED), or None.

        Costs two system calls. Not for use during a call: look() and hear() notice.
        """
        code = self._process.poll()
        if code is not None:
            return ended(code)
        self._listen()
        stopped = self._suspension is None and self._status.state() == "T"
        return Restart.STOPPED if stopped else None

    def resident_bytes(self) -> int:
        """Resident set size in bytes; 0 when the process is gone."""
        return self._status.resident_bytes()

    def settle(self) -> None:
        """Leave the suspension: from now on like a child that never had one."""
        if self._suspension is not None:
            self._suspension.discard(self._process)
            self._suspension = None

    def kill(self) -> None:
        """End the process, without waiting for its end."""
        if self._suspension is not None:
            self._suspension.discard(self._process)
        self._process.kill()

    def close(self) -> None:
        """End the process, wait for its end and free its memory. Safe to call twice."""
        self._opened.close()
