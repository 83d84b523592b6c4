"""Processes that stand still while others have work to do."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
import time

HELD_SECONDS = 0.1
"""How long run_briefly() expects a process to have stood still."""


class Suspension:
    """Thread-safe. While it is held, every process in it is stopped by the system.

    `holds` counts how often that began: a run that saw the same number before and after it, and
    did not find it held, was never interrupted. `slice_seconds` is what run_briefly() gives.
    """

    def __init__(self, *, slice_seconds: float = 0.0) -> None:
        self._slice_seconds = slice_seconds
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
            self._send(signal.SIGSTOP, *self._processes)

    def release(self) -> None:
        with self._lock:
            self.held = False
            self._send(signal.SIGCONT, *self._processes)

    def add(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._processes.add(process)
            if self._ended:
                process.kill()
            elif self.held:
                process.send_signal(signal.SIGSTOP)

    def discard(self, process: subprocess.Popen[bytes]) -> None:
        """From now on it runs whatever happens."""
        with self._lock:
            self._processes.discard(process)
            self._send(signal.SIGCONT, process)

    def run_briefly(self, process: subprocess.Popen[bytes]) -> None:
        """Let a held process run for its slice: asked every HELD_SECONDS, it finishes in the end
        however long the others keep it waiting. Blocks for that slice."""
        if not self._slice_seconds:
            return
        self._send(signal.SIGCONT, process)
        time.sleep(self._slice_seconds)
        with self._lock:
            if self.held and process in self._processes:
                self._send(signal.SIGSTOP, process)

    def end(self) -> None:
        """Kill them all, and every process that is still added."""
        with self._lock:
            self._ended = True
            self._send(signal.SIGKILL, *self._processes)

    def _send(self, number: signal.Signals, *processes: subprocess.Popen[bytes]) -> None:
        for process in processes:
            with contextlib.suppress(OSError):  # it has just ended
                process.send_signal(number)
