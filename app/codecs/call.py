"""One call into a codec process, and what its outcome means to whoever waits for it."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from app.contracts.errors import BackendError, DeadlineExceeded, PaddlepoolError, WorkerCrashed
from app.contracts.tensors import Tensors
from app.process.child import Child, ChildDied, ChildTimeout
from app.process.child import Reply as Reply  # pipelines take it from here

LATE_SECONDS = 2.0
"""How long past its deadline a running call may go on: a client's short deadline must not be a
way to make the pool kill and start processes."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True, weakref_slot=True)
class Call:
    """A function by name, its arguments, and the class of error to blame when its process dies.

    `deadline` is absolute. `wall_seconds` bounds the run itself, of which the time does not count
    that others keep it from running; the descriptors belong to the call and are closed by `close`.
    """

    function: str
    meta: Mapping[str, Any]
    arrays: Tensors
    descriptors: tuple[int, ...]
    deadline: float
    wall_seconds: float
    blame: type[PaddlepoolError]
    future: Future[Reply]

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)

    def run(self, child: Child, *, now: float) -> str | None:
        """Run in the child, close the descriptors, and only then settle the future.

        Returns why the child must be replaced ("timeout", "memory", "crashed", "killed",
        "stopped"), or None when it can go on.
        """
        if not self.future.set_running_or_notify_cancel():
            self.close()
            return None
        outcome: Reply | PaddlepoolError
        reason: str | None = None
        if now >= self.deadline:
            outcome = DeadlineExceeded("the deadline passed before a codec process was free")
        else:
            outcome, reason = self._attempt(child, left=self.deadline - now + LATE_SECONDS)
        self.close()
        if isinstance(outcome, Reply):
            self.future.set_result(outcome)
        else:
            self.future.set_exception(outcome.alone())
        return reason

    def _attempt(self, child: Child, *, left: float) -> tuple[Reply | PaddlepoolError, str | None]:
        request = {"function": self.function, "meta": self.meta}
        timeout = min(self.wall_seconds, left)
        try:
            return child.call(
                request,
                self.arrays,
                descriptors=self.descriptors,
                timeout=timeout,
                patience=left - timeout,
            ), None
        except ChildTimeout as late:
            if timeout < self.wall_seconds or late.starved:
                return DeadlineExceeded("the deadline passed while a picture was open"), "timeout"
            message = f"the picture took longer than the limit of {self.wall_seconds:g} s"
            return self.blame(message, limit=self.wall_seconds), "timeout"
        except ChildDied as died:
            return self.blame("the process working on the picture died"), died.reason
        except WorkerCrashed:  # so the sandbox says that memory ran out
            return self.blame("the picture needs more memory than one picture may take"), "memory"
        except PaddlepoolError as raised:
            return raised, None
        except Exception:
            log.exception("this is a bug: a codec call failed on the parent's side")
            return BackendError("a codec call failed on the parent's side"), "crashed"
