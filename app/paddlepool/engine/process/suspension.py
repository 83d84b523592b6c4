"""Stops processes while others have work to do."""

import contextlib
import signal
import subprocess
import threading
import time


class Suspension:
    """Processes that are stopped (SIGSTOP) while the suspension is held. Thread-safe.

    It is held from hold() until release(). `holds` counts the calls of hold(). A run was not
    interrupted if `held` was false when it began and `holds` did not change during it.
    `slice_seconds` is the duration of run_briefly(), and `pause_seconds` the time that its callers
    wait before each call.
    """

    def __init__(self, *, slice_seconds: float = 0.0, pause_seconds: float = 0.1) -> None:
        self._slice_seconds = slice_seconds
        self.pause_seconds = pause_seconds
        self.holds = 0
        self.held = False
        self._ended = False
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()

    def hold(self) -> None:
        """Stop all processes; takes a few microseconds for each."""
        with self._lock:
            self.held = True
            self.holds += 1
            self._send(signal.SIGSTOP, *self._processes)

    def release(self) -> None:
        with self._lock:
            self.held = False
            self._send(signal.SIGCONT, *self._processes)

    def add(self, process: subprocess.Popen[bytes]) -> None:
        """Add a process; stop it if the suspension is held, or kill it after end()."""
        with self._lock:
            self._processes.add(process)
            if self._ended:
                process.kill()
            elif self.held:
                process.send_signal(signal.SIGSTOP)

    def discard(self, process: subprocess.Popen[bytes]) -> None:
        """Remove a process, which runs freely from now on."""
        with self._lock:
            self._processes.discard(process)
            self._send(signal.SIGCONT, process)

    def run_briefly(self, process: subprocess.Popen[bytes]) -> None:
        """Let a stopped process run for `slice_seconds`, and block meanwhile.

        Does nothing if that is 0. With repeated calls, the process finishes its work even if the
        suspension stays held.
        """
        if not self._slice_seconds:
            return
        self._send(signal.SIGCONT, process)
        time.sleep(self._slice_seconds)
        with self._lock:
            if self.held and process in self._processes:
                self._send(signal.SIGSTOP, process)

    def end(self) -> None:
        """Kill all processes, and every process that is added later."""
        with self._lock:
            self._ended = True
            self._send(signal.SIGKILL, *self._processes)

    def _send(self, number: signal.Signals, *processes: subprocess.Popen[bytes]) -> None:
        for process in processes:
            with contextlib.suppress(OSError):  # the process has just ended
                process.send_signal(number)
