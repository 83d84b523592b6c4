"""Writes the output of child processes to the server's log."""

import logging
import time
from collections.abc import Callable

from paddlepool.contracts.sentences import printable

LINE_BYTES = 1_000
"""Maximum bytes of a line that are logged."""
BURST_LINES = 100
LINES_PER_SECOND = 10.0

log = logging.getLogger("paddlepool.child")


class OutputLogger:
    """Logs each line that one child process prints.

    A record contains the id of the process, and unprintable characters are escaped: a child can
    neither imitate another line nor control a terminal. A line is cut after `LINE_BYTES`. At most
    `BURST_LINES` are logged at once, and `LINES_PER_SECOND` on average; others are dropped, and
    their number is logged. Empty lines are ignored.
    """

    def __init__(self, pid: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._pid, self._clock = pid, clock
        self._rest = b""
        self._allowed, self._counted_at = float(BURST_LINES), clock()
        self._dropped = 0

    def add(self, block: bytes) -> None:
        """Log the complete lines of `block`; an incomplete last line waits for the next call."""
        *lines, rest = (self._rest + block).split(b"\n")
        self._rest = rest[: LINE_BYTES + 1]  # one more byte shows that the line is cut
        now = self._clock()
        earned = (now - self._counted_at) * LINES_PER_SECOND
        self._allowed, self._counted_at = min(BURST_LINES, self._allowed + earned), now
        for line in filter(None, lines):
            if self._allowed < 1:
                self._dropped += 1
                continue
            self._allowed -= 1
            self._log_dropped()
            log.warning("child process %d: %s", self._pid, _printable_line(line))

    def end(self) -> None:
        """Log an incomplete last line and the number of dropped lines, if there are any."""
        self.add(b"\n")
        self._log_dropped()

    def _log_dropped(self) -> None:
        if self._dropped:
            log.warning("%d lines of child process %d were dropped", self._dropped, self._pid)
            self._dropped = 0


def _printable_line(line: bytes) -> str:
    text = line[:LINE_BYTES].decode(errors="backslashreplace")
    return printable(text) + ("…" if len(line) > LINE_BYTES else "")
