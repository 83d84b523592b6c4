"""One call into a codec process, and what its outcome means to whoever waits for it."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from app.engine.child import Child, ChildDied, ChildTimeout
from app.engine.child import Reply as Reply  # pipelines take it from here
from app.engine.tensors import Tensors
from app.errors import BackendError, DeadlineExceeded, PaddlepoolError, WorkerCrashed

LATE_SECONDS = 2.0
"""How long past its deadline a running call may go on: a client's short deadline must not be a
way to make the pool kill and start processes."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Call:
    """A function by name, its arguments, and the class of error to blame when its process dies.

    `deadline` is absolute, `wall_seconds` bounds the run itself; the descriptors belong to the
    call and are closed by `close`.
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
            timeout = min(self.wall_seconds, self.deadline - now + LATE_SECONDS)
            outcome, reason = self._attempt(child, timeout)
        self.close()
        if isinstance(outcome, Reply):
            self.future.set_result(outcome)
        else:
            self.future.set_exception(outcome)
        return reason

    def _attempt(self, child: Child, timeout: float) -> tuple[Reply | PaddlepoolError, str | None]:
        message = {"function": self.function, "meta": self.meta}
        try:
            return child.call(
                message, self.arrays, descriptors=self.descriptors, timeout=timeout
            ), None
        except ChildTimeout:
            if timeout < self.wall_seconds:
                return DeadlineExceeded("the deadline passed while a picture was open"), "timeout"
            late = f"the picture took longer than the limit of {self.wall_seconds:g} s"
            return self.blame(late, limit=self.wall_seconds), "timeout"
        except ChildDied as died:
            return self.blame("the process working on the picture died"), died.reason
        except WorkerCrashed:  # so the sandbox says that memory ran out
            return self.blame("the picture needs more memory than one picture may take"), "memory"
        except PaddlepoolError as raised:
            return raised, None
        except Exception:
            log.exception("this is a bug: a codec call failed on the parent's side")
            return BackendError("a codec call failed on the parent's side"), "crashed"
