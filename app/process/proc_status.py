"""What the system tells about a child process: its state, its processor time, its memory."""

from __future__ import annotations

import mmap
import os


class ProcStatus:
    """Reads /proc/PID. Its files are kept open: they are read before every run, and opening them by
    path would cost ten times as much. Also read by threads that do not own the child."""

    def __init__(self, pid: int) -> None:
        """Raises OSError."""
        self._stat = self._statm = -1
        try:
            self._stat = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
            self._statm = os.open(f"/proc/{pid}/statm", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self.close()
            raise

    def state(self) -> str:
        """One letter: R runs, D waits for a disk, T is stopped, X is gone."""
        return self._fields()[0].decode("ascii")

    def cpu_seconds(self) -> float:
        """User and system time of all its threads."""
        return sum(map(int, self._fields()[11:13])) / os.sysconf("SC_CLK_TCK")

    def resident_bytes(self) -> int:
        """Resident set size in bytes; 0 when the process is gone."""
        try:
            pages = int(os.pread(self._statm, 128, 0).split()[1])
        except (OSError, IndexError, ValueError):
            return 0
        return pages * mmap.PAGESIZE

    def close(self) -> None:
        # Forgotten before they are closed: nobody must read what is opened next under their number.
        stat, self._stat = self._stat, -1
        statm, self._statm = self._statm, -1
        for descriptor in (stat, statm):
            if descriptor != -1:
                os.close(descriptor)

    def _fields(self) -> list[bytes]:
        """/proc/PID/stat from the state on."""
        try:
            return os.pread(self._stat, 512, 0).rpartition(b")")[2].split()
        except OSError:
            return [b"X"]
