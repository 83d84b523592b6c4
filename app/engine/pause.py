"""Processes that stand still while others have work to do."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading


class Pause:
    """Thread-safe. While it is held, every process in it is stopped by the system.

    `holds` counts how often that began: a run that saw the same number before and after it, and
    did not find it held, was never interrupted.
    """

    def __init__(self) -> None:
        self.holds = 0
        self.held = False
        self._ended = False
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()

    def hold(self) -> None:
        """Stop them all; takes some microseconds a process."""
        with self._lock:
            self.held = True
            self.holds += 1
            self._send(signal.SIGSTOP)

    def release(self) -> None:
        with self._lock:
            self.held = False
            self._send(signal.SIGCONT)

    def add(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._processes.add(process)
            if self._ended:
                process.kill()
            elif self.held:
                process.send_signal(signal.SIGSTOP)

    def discard(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._processes.discard(process)

    def end(self) -> None:
        """Kill them all, and every process that is still added."""
        with self._lock:
            self._ended = True
            self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        for process in self._processes:
            with contextlib.suppress(OSError):  # it has just ended
                process.send_signal(number)
