"""One call into a codec process, and what its outcome means to whoever waits for it."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.codecs.picture import PICTURE_LINK
from app.contracts.errors import DeadlineExceeded, Overloaded, PaddlepoolError, WorkerCrashed
from app.contracts.ports import Interrupted
from app.contracts.reasons import Restart
from app.engine.queue.job import Job
from app.process.child import Child, ChildDied, ChildTimeout
from app.process.child import Reply as Reply  # pipelines take it from here

KILLED_RETRY_SECONDS = 5.0
"""When to come back to a machine that has no memory for a picture."""


class Descriptors:
    """Duplicates of the caller's, kept until the call is settled: it may be run again."""

    def __init__(self, originals: Sequence[int]) -> None:
        """Raises OSError where the system has no descriptor to give, and keeps none then."""
        self._lock = threading.Lock()
        self._held: tuple[int, ...] = ()
        self._closed = False
        try:
            for original in originals:
                self._held += (os.dup(original),)
        except OSError:
            self.close()
            raise

    def send(self, child: Child, request: Mapping[str, Any], call: Job) -> None:
        """Send the request with them. Raises ChildDied; DeadlineExceeded when they are closed,
        because nobody waits for the call any more."""
        with self._lock:  # another thread may settle the call now: no other file must be sent
            if self._closed:
                raise DeadlineExceeded("the deadline passed before a codec process was free")
            child.send(request, call.inputs, descriptors=self._held)

    def close(self) -> None:
        with self._lock:
            held, self._held, self._closed = self._held, (), True
        for descriptor in held:
            os.close(descriptor)


@dataclass(slots=True, eq=False, kw_only=True)
class Call(Job):
    """A job of one row: a function by name, its arguments, and the class of error to blame when its
    process dies.

    `wall_seconds` bounds the run itself, of which the time does not count that others keep it from
    running.
    """

    function: str
    meta: Mapping[str, Any]
    descriptors: Descriptors
    wall_seconds: float
    blame: type[PaddlepoolError]
    interrupted: bool = False


class CodecProcess:
    """A child process that runs calls: an `app.contracts.ports.Worker`.

    Another thread than its owner may run a warm-up in it, between two calls.
    """

    def __init__(self, child: Child) -> None:
        self._child = child
        self._turn = threading.Lock()
        self._call: Call | None = None
        self._failure: Restart | None = None
        self.warmed = 0

    @property
    def pid(self) -> int:
        return self._child.pid

    def send(self, call: Call, /) -> None:
        self._turn.acquire()
        try:
            request = {"function": call.function, "meta": call.meta}
            call.descriptors.send(self._child, request, call)
        except BaseException as error:
            self._turn.release()
            if isinstance(error, ChildDied):
                raise self._crashed(error) from None
            raise
        self._call = call

    def arrives(self, seconds: float) -> bool:
        """Always true: no call is handed over behind a picture that may hang."""
        del seconds
        return True

    def receive(self, *, timeout: float) -> Reply:
        """The reply to the call, or what the function raised (the process lives on).

        Raises the error to blame when the process died, ran out of memory or took longer than the
        call's wall limit, and DeadlineExceeded when others kept it from running. Where somebody
        else killed or stopped the process (out of memory, the system takes one) the call is not to
        blame: raises Interrupted once, then Overloaded. Raises WorkerCrashed for a corrupt answer.
        """
        call, self._call = self._call, None
        if call is None:
            raise RuntimeError("this is a bug: nothing was sent")
        wall = min(call.wall_seconds, timeout)
        try:
            reply = self._child.receive(timeout=wall, patience=timeout - wall)
        except ChildTimeout as late:
            self._failure = late.reason
            if wall < call.wall_seconds or late.starved:
                raise DeadlineExceeded("the deadline passed while a picture was open") from None
            limit = call.wall_seconds
            message = f"the picture took longer than the limit of {limit:g} s"
            raise call.blame(message, limit=limit) from None
        except ChildDied as died:
            self._failure = died.reason
            if died.reason in (Restart.KILLED, Restart.STOPPED):
                if not call.interrupted:
                    call.interrupted = True
                    raise Interrupted from None
                message = "the system ended two processes working on the picture"
                raise Overloaded(message, retry_after=KILLED_RETRY_SECONDS) from None
            if died.reason is Restart.TIMEOUT:
                raise call.blame("the picture took longer than one of its size may") from None
            blame = WorkerCrashed if died.reason is Restart.CORRUPT else call.blame
            raise blame("the process working on the picture died") from None
        except WorkerCrashed:  # so the sandbox says that memory ran out
            self._failure = Restart.MEMORY
            message = "the picture needs more memory than one picture may take"
            raise call.blame(message) from None
        except PaddlepoolError:
            self._check_descriptors()
            raise
        else:
            self._check_descriptors()
            return reply
        finally:
            self._turn.release()

    def warm_up(self, functions: Sequence[str], *, timeout: float) -> list[PaddlepoolError]:
        """Run those of the functions that it has not run yet, and return what they raised.

        Raises WorkerCrashed when the process died.
        """
        raised = []
        with self._turn:
            for function in functions[self.warmed :]:
                try:
                    self._child.call({"function": function, "meta": {}}, timeout=timeout)
                except ChildDied as error:
                    raise self._crashed(error) from None
                except PaddlepoolError as error:
                    raised.append(error)
                self.warmed += 1
        return raised

    def _check_descriptors(self) -> None:
        """End a process that keeps a picture open: the memory would live as long as the process.

        Raises WorkerCrashed.
        """
        if any(link == PICTURE_LINK for link in self._open_files()):
            self._failure = Restart.CORRUPT
            self._child.kill()
            raise WorkerCrashed("the process working on the picture died")

    def _open_files(self) -> Iterator[str]:
        """What each of its descriptors leads to; nothing once the process is gone."""
        with contextlib.suppress(OSError):
            for descriptor in Path(f"/proc/{self.pid}/fd").iterdir():
                with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                    yield str(descriptor.readlink())

    def _crashed(self, error: ChildDied) -> WorkerCrashed:
        self._failure = error.reason
        return WorkerCrashed(f"the codec process ended ({error.reason})")

    def failure(self) -> Restart | None:
        return self._failure or self._child.failure()

    def resident_bytes(self) -> int:
        return self._child.resident_bytes()

    def abort(self) -> None:
        self._child.kill()

    def close(self) -> None:
        self._child.close()
