"""A child process that can be called with arrays, limited, timed out and killed: the parent's side.

Predictors and codecs run in such children. Whatever happens in one (a native crash, an endless
loop, a stop signal, memory without end) costs the call that was in it and nothing else.
The other side of the wire is `app.process.worker`.
"""

from __future__ import annotations

import contextlib
import json
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
from typing import Any

import numpy as np

import app.contracts.errors
from app.contracts.errors import BackendError, PaddlepoolError
from app.contracts.ports import Suspended
from app.contracts.tensors import Array, Tensors
from app.process.shared_arrays import SharedArrays
from app.process.suspension import HELD_SECONDS
from app.process.worker import HEADER_BYTES, SLOTS

STOPPED_SECONDS = 0.5
"""A child in state T (stopped) for this long counts as dead: nothing in it will ever answer."""


class ChildDied(Exception):
    """The process ended, or was ended, while it was being called. `reason` is a closed set."""

    def __init__(self, reason: str, exit_code: int | None) -> None:
        super().__init__(f"child process ended: {reason} (exit code {exit_code})")
        self.reason = reason
        self.exit_code = exit_code


class ChildTimeout(ChildDied):
    """The call took longer than its timeout; the process has been killed.

    `starved`: it would have gone on, but others had the processors.
    """

    def __init__(self, *, starved: bool = False) -> None:
        super().__init__("timeout", -signal.SIGKILL)
        self.starved = starved


@dataclass(frozen=True, slots=True)
class Reply:
    """What a handler returned, JSON values and arrays the caller owns, and how long it took.

    `seconds` are the child's own: how late the parent reads the reply is not in them.
    """

    meta: Mapping[str, Any]
    arrays: Tensors
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a child may take. `address_space` in bytes is RLIMIT_AS, set after its imports.

    With a `suspension` the child stands still while that is held (no timeout runs on then) and
    ends with the thread that started it. An `idle` one runs only on processors that nobody else
    wants.
    """

    address_space: int | None = None
    nice: int = 0
    environment: Mapping[str, str] | None = None
    suspension: Suspended | None = None
    idle: bool = False


class Child:
    """One process running `target` ("module:function"); owned by one thread at a time.

    `target(init)` runs in the child and returns `handler(meta, arrays, descriptors)`, which
    returns `(meta, arrays)`. A PaddlepoolError it raises is raised again here as the same class;
    any other exception becomes a BackendError, its text in the log only.

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
    ) -> None:
        with contextlib.ExitStack() as opened:
            self._start(opened, limits)
            opening = {
                "target": target,
                "init": init,
                "address_space": limits.address_space,
                "nice": limits.nice,
                "gentle": limits.suspension is not None,
            }
            self.ready = self.call(opening, timeout=start_timeout).meta
            self._opened = opened.pop_all()

    def _start(self, opened: contextlib.ExitStack, limits: Limits) -> None:
        """Start the process; all that it takes is closed with `opened`, also where this fails."""
        self._under_way: deque[int] = deque()
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
            environment = dict(os.environ) | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
            end_with_thread = ["end-with-thread"] if limits.suspension is not None else []
            command = [sys.executable, "-m", "app.process.worker", *map(str, inherited)]
            self._process = subprocess.Popen(
                command + end_with_thread,
                pass_fds=inherited,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=environment | dict(limits.environment or {}),
            )
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
        # Kept open: asked before every run, and reading by path would cost ten times as much.
        self._stat = self._statm = -1
        opened.callback(self._close_proc)
        self._stat = os.open(f"/proc/{self.pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        self._statm = os.open(f"/proc/{self.pid}/statm", os.O_RDONLY | os.O_CLOEXEC)

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
        slot = next(n for n in range(SLOTS) if n not in self._under_way)
        layout = self._slots[slot][0].write(arrays or {})
        header = json.dumps({"meta": meta, "arrays": layout, "slot": slot}).encode()
        if len(header) > HEADER_BYTES:
            raise ValueError(
                f"this is a bug: a header of {len(header)} bytes, limit {HEADER_BYTES}"
            )
        try:
            socket.send_fds(self._socket, [header], list(descriptors))
        except (BrokenPipeError, ConnectionResetError):
            raise self._died() from None
        self._under_way.append(slot)

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
            answer = json.loads(self._receive(timeout, patience))
        except (BrokenPipeError, ConnectionResetError, EOFError):
            raise self._died() from None
        requests, replies = self._slots[self._under_way.popleft()]
        if "error" in answer:
            raise _rebuild(answer["error"])
        views = replies.read(answer["arrays"])
        owned: dict[str, Array] = {name: np.array(view) for name, view in views.items()}
        replies.trim()
        requests.trim()
        return Reply(answer["meta"], owned, answer["seconds"])

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
                    starved = lacking > 0.0 and self._state() in "RD"
                    if starved and now < last:
                        deadline = min(now + lacking, last)
                        continue
                    self.kill()
                    raise ChildTimeout(starved=starved) from None
                if self._state() != "T":
                    stopped_since = None
                elif stopped_since is None:
                    stopped_since = now
                elif now - stopped_since >= STOPPED_SECONDS:
                    self.kill()
                    raise ChildDied("stopped", self._process.returncode) from None
                continue
            if not received:
                raise EOFError
            return received

    def _state(self) -> str:
        return self._status()[0].decode("ascii")

    def _cpu_seconds(self) -> float:
        """User and system time of all its threads."""
        status = self._status()
        return sum(map(int, status[11:13])) / os.sysconf("SC_CLK_TCK")

    def _status(self) -> list[bytes]:
        """/proc/PID/stat from the state on; b"X" where the process is gone."""
        try:
            return os.pread(self._stat, 512, 0).rpartition(b")")[2].split()
        except OSError:
            return [b"X"]

    def _died(self) -> ChildDied:
        try:
            code = self._process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            self.kill()
            code = self._process.returncode
        return ChildDied("killed" if code == -signal.SIGKILL else "crashed", code)

    def failure(self) -> str | None:
        """Why an idle child can answer no further call ("crashed", "killed", "stopped"), or None.

        Costs two system calls. Not for use during a call: that one notices by itself.
        """
        code = self._process.poll()
        if code is not None:
            return "killed" if code == -signal.SIGKILL else "crashed"
        return "stopped" if self._suspension is None and self._state() == "T" else None

    def resident_bytes(self) -> int:
        """Resident set size in bytes; 0 when the process is gone."""
        try:
            pages = int(os.pread(self._statm, 128, 0).split()[1])
        except (OSError, IndexError, ValueError):  # also asked by threads that do not own it
            return 0
        return pages * mmap.PAGESIZE

    def settle(self) -> None:
        """Leave the suspension: like a child that never had one, but for ending with its thread."""
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

    def _close_proc(self) -> None:
        # Other threads ask for the memory meanwhile: they must not read what is opened next.
        stat, self._stat = self._stat, -1
        statm, self._statm = self._statm, -1
        for descriptor in (stat, statm):
            if descriptor != -1:
                os.close(descriptor)


def _rebuild(error: Mapping[str, Any]) -> PaddlepoolError:
    kind = getattr(app.contracts.errors, error["kind"], BackendError)
    rebuilt: PaddlepoolError = kind(
        error["message"], limit=error.get("limit"), received=error.get("received")
    )
    return rebuilt
