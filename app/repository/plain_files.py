"""Files that a model is made of: regular ones, opened without waiting for anybody."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path


def open_plain_file(path: Path, *, follow: bool = False) -> BufferedReader:
    """Open without waiting on a pipe, and, unless told to `follow`, without following a link.

    Raises OSError, also for anything but a regular file.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
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
