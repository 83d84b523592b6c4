"""A child process that can be called with arrays, limited, timed out and killed: the parent's side.

Predictors and codecs run in such children. Whatever happens in one (a native crash, an endless
loop, a stop signal, memory without end) costs the call that was in it and nothing else.
The other side of the wire is `app.process.worker`.
"""

from __future__ import annotations

import contextlib
import json
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
from app.contracts.reasons import Restart
from app.contracts.tensors import Array, Tensors
from app.process.environment import Limits as Limits  # whoever starts a child takes it from here
from app.process.environment import child_environment
from app.process.proc_status import ProcStatus
from app.process.shared_arrays import SharedArrays
from app.process.suspension import HELD_SECONDS
from app.process.worker import HEADER_BYTES, SLOTS

STOPPED_SECONDS = 0.5
"""A child in state T (stopped) for this long counts as dead: nothing in it will ever answer."""


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


@dataclass(frozen=True, slots=True)
class Reply:
    """What a handler returned, JSON values and arrays the caller owns, and how long it took.

    `seconds` are the child's own: how late the parent reads the reply is not in them.
    """

    meta: Mapping[str, Any]
    arrays: Tensors
    seconds: float


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
            end_with_thread = ["end-with-thread"] if limits.suspension is not None else []
            command = [sys.executable, "-m", "app.process.worker", *map(str, inherited)]
            self._process = subprocess.Popen(
                command + end_with_thread,
                pass_fds=inherited,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=child_environment(limits.environment),
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
        self._status = ProcStatus(self.pid)
        opened.callback(self._status.close)

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
            if not received:
                raise EOFError
            return received

    def _cpu_seconds(self) -> float:
        return self._status.cpu_seconds()

    def _died(self) -> ChildDied:
        try:
            code = self._process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            self.kill()
            code = self._process.returncode
        return ChildDied(_ended(code), code)

    def failure(self) -> Restart | None:
        """Why an idle child can answer no further call (CRASHED, KILLED, STOPPED), or None.

        Costs two system calls. Not for use during a call: that one notices by itself.
        """
        code = self._process.poll()
        if code is not None:
            return _ended(code)
        stopped = self._suspension is None and self._status.state() == "T"
        return Restart.STOPPED if stopped else None

    def resident_bytes(self) -> int:
        """Resident set size in bytes; 0 when the process is gone."""
        return self._status.resident_bytes()

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


def _rebuild(error: Mapping[str, Any]) -> PaddlepoolError:
    kind = getattr(app.contracts.errors, error["kind"], BackendError)
    rebuilt: PaddlepoolError = kind(
        error["message"], limit=error.get("limit"), received=error.get("received")
    )
    return rebuilt


def _ended(code: int | None) -> Restart:
    return Restart.KILLED if code == -signal.SIGKILL else Restart.CRASHED
