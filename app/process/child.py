"""A child process that can be called with arrays, limited, timed out and killed: the parent's side.

Predictors and codecs run in such children. Whatever happens in one (a native crash, an endless
loop, a stop signal, memory without end) costs the call that was in it and nothing else.
The other side of the wire is `app.process.worker`.
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
from pathlib import Path
from typing import Any

import numpy as np

from app.contracts.reasons import Restart
from app.contracts.tensors import Array, Tensors
from app.process.answers import Check, read_answer
from app.process.answers import Reply as Reply
from app.process.environment import Limits as Limits  # whoever starts a child takes it from here
from app.process.environment import child_environment
from app.process.printed import pass_on
from app.process.shared_arrays import SharedArrays
from app.process.suspension import HELD_SECONDS
from app.process.worker import ARGUMENTS, HEADER_BYTES, SLOTS

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
        self._under_way: deque[tuple[int, float, Mapping[str, Any]]] = deque()
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
        opened.callback(pass_on(self._process).join, 1.0)
        self._suspension = limits.suspension
        opened.callback(self.kill)
        self.pid = self._process.pid
        self._arrival = select.poll()
        self._arrival.register(self._socket, select.POLLIN)
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

    def call(
        self,
        meta: Mapping[str, Any],
        arrays: Tensors | None = None,
        *,
        descriptors: Sequence[int] = (),
        timeout: float,
        patience: float = 0.0,
    ) -> Reply:
        """Send one request and wait for its reply; see send() and receive()."""
        self.send(meta, arrays, descriptors=descriptors)
        return self.receive(timeout=timeout, patience=patience)

    def send(
        self,
        meta: Mapping[str, Any],
        arrays: Tensors | None = None,
        *,
        descriptors: Sequence[int] = (),
    ) -> None:
        """Send one request, without waiting for anything. Raises ChildDied: it then never began."""
        if not self._under_way and self.arrives(0.0):
            raise self._died() if self._hung_up() else self._not_believed("it spoke unasked")
        slot = next(n for n in range(SLOTS) if all(n != used for used, *_ in self._under_way))
        layout = self._slots[slot][0].write(arrays or {})
        header = json.dumps({"meta": meta, "arrays": layout, "slot": slot}).encode()
        if len(header) > HEADER_BYTES:
            raise ValueError(
                f"this is a bug: a header of {len(header)} bytes, limit {HEADER_BYTES}"
            )
        try:
            if descriptors:
                socket.send_fds(self._socket, [header], list(descriptors))
            else:
                self._socket.send(header)
        except (BrokenPipeError, ConnectionResetError):
            raise self._died() from None
        self._under_way.append((slot, time.monotonic(), meta))

    def arrives(self, seconds: float) -> bool:
        """Whether within so many seconds receive() has something to say: a reply, or the end."""
        return bool(self._arrival.poll(max(0.0, 1000 * seconds)))

    def receive(self, *, timeout: float, patience: float = 0.0) -> Reply:
        """The reply to the oldest request under way, waited for up to `timeout` seconds.

        A process that wants to run and has had less processor time than that is given more, up to
        `patience` seconds: it is not slow, the machine is busy.

        Raises ChildTimeout or ChildDied (the process is then gone for good, and what was sent
        after that request never began), or what the handler raised (the process lives on).
        """
        try:
            received = self._receive(timeout, patience)
        except (BrokenPipeError, ConnectionResetError, EOFError):
            raise self._died() from None
        slot, sent, asked = self._under_way.popleft()
        requests, replies = self._slots[slot]
        try:
            answer = read_answer(received, opening=not self._open)
            views = {} if isinstance(answer, Exception) else replies.read(answer.layout)
            if self._check is not None and not isinstance(answer, Exception):
                self._check(asked, answer.meta, views)
        except ValueError as fault:
            raise self._not_believed(str(fault)) from None
        if isinstance(answer, Exception):
            try:
                raise answer
            finally:
                del answer  # this frame is in its traceback: each would keep the other
        owned: dict[str, Array] = {name: np.array(view) for name, view in views.items()}
        replies.trim()
        requests.trim()
        return Reply(answer.meta, owned, min(answer.seconds, time.monotonic() - sent))

    def _receive(self, timeout: float, patience: float) -> bytes:
        deadline = time.monotonic() + timeout
        last = deadline + patience
        had = self._cpu_seconds() if patience else 0.0
        stopped_since: float | None = None
        look = STOPPED_SECONDS / 2 if self._suspension is None else HELD_SECONDS
        while True:
            now = time.monotonic()
            self._socket.settimeout(max(0.001, min(look, deadline - now)))
            try:
                received = self._socket.recv(HEADER_BYTES)
            except TimeoutError:
                if self._suspension is not None and self._suspension.held:
                    self._suspension.run_briefly(self._process)
                    deadline += time.monotonic() - now
                    stopped_since = None
                    continue
                now = time.monotonic()
                if now >= deadline:
                    lacking = timeout - (self._cpu_seconds() - had) if patience else 0.0
                    starved = lacking > 0.0 and self._status.state() in "RD"
                    if starved and now < last:
                        deadline = min(now + lacking, last)
                        continue
                    self.kill()
                    raise ChildTimeout(starved=starved) from None
                if self._status.state() != "T":
                    stopped_since = None
                elif stopped_since is None:
                    stopped_since = now
                elif now - stopped_since >= STOPPED_SECONDS:
                    self.kill()
                    raise ChildDied(Restart.STOPPED, self._process.returncode) from None
                continue
            if not received and self._hung_up():
                raise EOFError
            return received

    def _cpu_seconds(self) -> float:
        return self._status.cpu_seconds()

    def _died(self) -> ChildDied:
        try:
            code = self._process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:  # it lives, and has closed its socket
            self.kill()
            return ChildDied(Restart.CORRUPT, self._process.returncode)
        return ChildDied(ended(code), code)

    def _hung_up(self) -> bool:
        """Whether its end of the socket is closed; a message of no bytes looks the same to recv."""
        return any(events & select.POLLHUP for _, events in self._arrival.poll(0))

    def _not_believed(self, fault: str) -> ChildDied:
        """A child that answers what it never could is not ours any more, whatever it is."""
        log.error("child process %d is ended: its answer is not one: %s", self.pid, fault)
        self.kill()
        return ChildDied(Restart.CORRUPT, self._process.returncode)

    def failure(self) -> Restart | None:
        """Why an idle child can answer no further call (CRASHED, KILLED, STOPPED), or None.

        Costs two system calls. Not for use during a call: that one notices by itself.
        """
        code = self._process.poll()
        if code is not None:
            return ended(code)
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
        if self._suspension is not None:
            self._suspension.discard(self._process)
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End the process and free its memory. Safe to call twice."""
        self._opened.close()
