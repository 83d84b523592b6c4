"""Files that a model is made of: regular ones, opened without waiting for anybody."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path


def open_plain_file(path: Path) -> BufferedReader:
    """Open without waiting on a pipe and without following a link.

    Raises OSError, also for anything but a regular file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.ENODEV):  # a socket, or a device that is not there
            raise _irregular() from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _irregular()
    return os.fdopen(descriptor, "rb")


def _irregular() -> OSError:
    return OSError(errno.EINVAL, "not a regular file")
