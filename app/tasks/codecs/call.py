"""One call into a codec process, and the error that its caller gets for each kind of failure."""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.contracts.errors import DeadlineExceeded, Overloaded, PaddlepoolError, WorkerCrashed
from app.contracts.ports import Interrupted
from app.contracts.reasons import Restart
from app.engine.process.answers import Reply
from app.engine.process.child import Child, ChildDied, ChildTimeout, ChildWorker
from app.engine.queue.job import Job
from app.tasks.codecs.picture import PICTURE_LINK

KILLED_RETRY_SECONDS = 5.0
"""Seconds after which a client should retry if the machine lacks memory for a picture."""


@dataclass(slots=True, eq=False, kw_only=True)
class Call(Job):
    """A job of one row: a function by name and its arguments.

    `descriptors` are duplicates of the caller's. They are kept until the call is settled, because
    it may be retried. `blame` is the error to raise if the process dies. `wall_seconds` limits the
    run itself; time spent waiting for a processor does not count.
    """

    function: str
    meta: Mapping[str, Any]
    wall_seconds: float
    blame: type[PaddlepoolError]
    descriptors: list[int] = field(default_factory=list)
    interrupted: bool = False

    def hold(self, originals: Sequence[int]) -> None:
        """Duplicate the descriptors. Raises OSError if the system has none left."""
        for original in originals:
            self.descriptors.append(os.dup(original))

    def close(self) -> None:
        while self.descriptors:
            os.close(self.descriptors.pop())


class CodecProcess(ChildWorker):
    """A child process that runs calls: an `app.contracts.ports.Worker`."""

    def __init__(self, child: Child) -> None:
        super().__init__(child)
        self._call: Call | None = None
        self._wall = 0.0

    def put(self, call: Call, /) -> None:
        self._child.put(call.inputs)

    def send(self, call: Call, /) -> None:
        """Send the call. Raises WorkerCrashed, or DeadlineExceeded if the call is settled."""
        if call.future.done():  # the call's descriptors are closed, or will be at once
            raise DeadlineExceeded("the deadline passed before a codec process was free")
        request = {"function": call.function, "meta": call.meta}
        try:
            self._child.send(request, descriptors=call.descriptors)
        except ChildDied as error:
            raise self._crashed(error) from None
        self._call = call

    def expect(self, *, timeout: float) -> None:
        if self._call is not None:
            self._wall = min(self._call.wall_seconds, timeout)
        self._child.expect(timeout=self._wall, patience=timeout - self._wall)

    def poll_reply(self) -> int | None:
        """Read the reply; return the size of request and reply in bytes, or None until it arrives.

        If the function raised an error, this method raises the same error, and the process
        continues. After any other failure, it raises
        - the call's `blame` if the process died, ran out of memory or exceeded a time limit;
        - DeadlineExceeded if the deadline passed before the wall limit, or if other processes used
          the processors meanwhile;
        - Interrupted if the system or another program killed or stopped the process, for example
          when the machine lacked memory: the call is not at fault, and may be retried;
        - Overloaded if that happens to the same call again;
        - WorkerCrashed for a corrupt answer.
        """
        try:
            size = self._child.poll_reply()
        except ChildDied as died:
            raise self._blamed(died) from None
        except WorkerCrashed:  # the sandbox raises it when memory runs out
            self._failure = Restart.MEMORY
            message = "the picture needs more memory than the limit for one picture"
            raise self._done().blame(message) from None
        except PaddlepoolError:
            self._done()
            self._check_descriptors()
            raise
        if size is not None:
            self._done()
            self._check_descriptors()
        return size

    def fetch(self) -> Reply:
        return self._child.fetch()

    def _done(self) -> Call:
        call, self._call = self._call, None
        if call is None:
            raise RuntimeError("this is a bug: nothing was sent")
        return call

    def _blamed(self, died: ChildDied) -> Exception:
        if self._call is None:
            return self._crashed(died)
        call = self._done()
        self._failure = died.reason
        if isinstance(died, ChildTimeout):
            if self._wall < call.wall_seconds or died.starved:
                return DeadlineExceeded("the deadline passed while a picture was open")
            limit = call.wall_seconds
            return call.blame(f"the picture took longer than the limit of {limit:g} s", limit=limit)
        if died.reason in (Restart.KILLED, Restart.STOPPED):
            if not call.interrupted:
                call.interrupted = True
                return Interrupted()
            message = "the system killed two processes that worked on the picture"
            return Overloaded(message, retry_after=KILLED_RETRY_SECONDS)
        if died.reason is Restart.TIMEOUT:
            return call.blame("the picture took longer than the limit for its size")
        blame = WorkerCrashed if died.reason is Restart.CORRUPT else call.blame
        return blame("the process that worked on the picture died")

    def warm_up(self, functions: Sequence[str], *, timeout: float) -> list[PaddlepoolError]:
        """Run each function once, and return the errors that they raised. Raises WorkerCrashed."""
        raised = []
        for function in functions:
            try:
                self._child.call({"function": function, "meta": {}}, timeout=timeout)
            except ChildDied as error:
                raise self._crashed(error) from None
            except PaddlepoolError as error:
                raised.append(error)
        return raised

    def _check_descriptors(self) -> None:
        """Kill a process that keeps a picture open, because it would hold the picture's memory.

        Raises WorkerCrashed.
        """
        if any(link == PICTURE_LINK for link in self._open_files()):
            self._failure = Restart.CORRUPT
            self._child.kill()
            raise WorkerCrashed("the process that worked on the picture died")

    def _open_files(self) -> Iterator[str]:
        directory = f"/proc/{self.pid}/fd"
        with contextlib.suppress(OSError):
            for descriptor in os.listdir(directory):  # noqa: PTH208  pathlib takes 3 times as long
                with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                    yield os.readlink(f"{directory}/{descriptor}")  # noqa: PTH115

    def _crashed(self, error: ChildDied) -> WorkerCrashed:
        self._failure = error.reason
        return WorkerCrashed(f"the codec process ended ({error.reason})")
