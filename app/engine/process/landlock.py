"""Landlock rules for this thread and the threads it starts: which files they may access.

See landlock(7). A process under Landlock rules can read neither the memory nor the environment of a
process that is not under them, even if both belong to the same user.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
import struct
from collections.abc import Iterable
from pathlib import Path

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_WRITE_FILE, _READ_FILE, _READ_DIRECTORY = 2, 4, 8
_CHANGE_DIRECTORY = sum(1 << bit for bit in range(4, 13))
"""Rights to create or remove the entries of a directory."""
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_TCP = 0b11
_SCOPE = 0b11
"""Blocks signals and abstract sockets to processes that are not under these rules."""


def restrict(*, reading: Iterable[Path], writing: Iterable[Path]) -> int:
    """Let this thread read files only under `reading`, write only under `writing`, and use no TCP.

    Returns the version of Landlock that the kernel supports, or 0 if the rules are not in force.
    Files that are already open stay accessible. Paths that do not exist are skipped.
    """
    call = ctypes.CDLL(None, use_errno=True).syscall
    version = int(call(_CREATE, None, 0, 1))
    if version < 1:
        return 0
    write = _WRITE_FILE | _CHANGE_DIRECTORY
    write |= (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    read = _READ_FILE | _READ_DIRECTORY
    attributes = struct.pack("=Q", write | read)
    if version >= 4:
        attributes += struct.pack("=Q", _TCP)
    if version >= 6:
        attributes += struct.pack("=Q", _SCOPE)
    rules = call(_CREATE, attributes, len(attributes), 0)
    if rules < 0:
        return 0
    try:
        for path in writing:
            _allow(call, rules, path, write | read)
        for path in reading:
            _allow(call, rules, path, read)
        return version if call(_RESTRICT, rules, 0) == 0 else 0
    finally:
        os.close(rules)


def _allow(call: ctypes._FuncPointer, rules: int, path: Path, access: int) -> None:
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
                access &= _READ_FILE | _WRITE_FILE | _TRUNCATE
            call(_ADD, rules, 1, struct.pack("=Qi", access, descriptor), 0)
        finally:
            os.close(descriptor)
