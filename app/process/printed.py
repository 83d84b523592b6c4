"""What a child process prints, passed on to the standard error of this one.

A child never has this process's own standard error: it could open a pipe again to read what others
write there, read what an operator types at a terminal, or truncate a file.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time

BLOCK_BYTES = 1 << 16
PAUSE_SECONDS = 0.01
"""After each block: printing without end costs the API process next to nothing."""


def pass_on(process: subprocess.Popen[bytes]) -> threading.Thread:
    """Start a thread that copies the process's standard error until its end, and closes it."""
    thread = threading.Thread(target=_copy, args=(process,), name="printed", daemon=True)
    thread.start()
    return thread


def _copy(process: subprocess.Popen[bytes]) -> None:
    if process.stderr is None:
        return
    with process.stderr as printed:
        while block := os.read(printed.fileno(), BLOCK_BYTES):
            if sys.__stderr__ is not None:  # else its number may belong to another file
                with contextlib.suppress(OSError):  # nobody reads any more; the child may go on
                    os.write(2, block)
            time.sleep(PAUSE_SECONDS)
