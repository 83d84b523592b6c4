"""How a child process comes to its end."""

from __future__ import annotations

import signal

from app.contracts.reasons import Restart

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
