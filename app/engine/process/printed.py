"""Copies what a child process prints to the standard error of this process.

A child never inherits this process's standard error. If that is a pipe, the child could reopen it
and read what others write; at a terminal, what an operator types; and it could truncate a file.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import IO

BLOCK_BYTES = 1 << 16


def forward_output(printed: IO[bytes]) -> bool:
    """Copy printed text, up to one block, without waiting; False at the end of the stream."""
    try:
        block = os.read(printed.fileno(), BLOCK_BYTES)
    except BlockingIOError:
        return True
    if block and sys.__stderr__ is not None:  # else descriptor 2 may be another file
        with contextlib.suppress(OSError):  # no reader is left; the child may go on
            os.write(2, block)
    return bool(block)
