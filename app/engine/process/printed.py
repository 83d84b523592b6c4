"""What a child process prints, passed on to the standard error of this one.

A child never has this process's own standard error: it could open a pipe again to read what others
write there, read what an operator types at a terminal, or truncate a file.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import IO

BLOCK_BYTES = 1 << 16


def pass_on(printed: IO[bytes]) -> bool:
    """Copy what has been printed, up to one block, without waiting; False at its end."""
    try:
        block = os.read(printed.fileno(), BLOCK_BYTES)
    except BlockingIOError:
        return True
    if block and sys.__stderr__ is not None:  # else its number may belong to another file
        with contextlib.suppress(OSError):  # nobody reads any more; the child may go on
            os.write(2, block)
    return bool(block)
