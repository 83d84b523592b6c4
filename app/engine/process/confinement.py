"""Confines a child process, in case a client's data makes it run foreign code.

Codecs and predictors get no new privileges and no sockets. They cannot start, signal or inspect
other processes, change the mode or owner of a file, or use a terminal. They read only code,
libraries and information about the system; a predictor also reads its model. They write only to
/dev/null. A predictor also writes to the devices of a GPU, and to a temporary directory while it
converts its program. If the kernel lacks one of these measures, the others still apply; the parent
gets the list of the measures in force.
"""

import contextlib
import ctypes
import os
import stat
import struct
import sys
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path

from app.engine.process import seccomp

_PR_SET_NO_NEW_PRIVS = 38
_CAPABILITIES_VERSION = 0x20080522
_KEPT = 1 << 1 | 1 << 2
"""The capabilities that a child of root keeps: to access files of other users, who may own the code
or a model. With root's other capabilities, the child could inspect processes and change the system
despite the measures below."""
_SYSTEM = ("/usr", "/lib", "/lib64", "/sys", "/etc/ld.so.cache", "/etc/localtime")
_PROC = ("self", "cpuinfo", "meminfo", "stat", "version", "filesystems", "sys", "driver", "devices")
"""Entries of /proc that are not about other processes."""
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
"""The allowed devices. The others are disks, terminals and shared memory."""
_PACKAGE = Path(__file__).parents[2]

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_WRITE_FILE, _READ_FILE, _READ_DIRECTORY = 2, 4, 8
_CHANGE_DIRECTORY = sum(1 << bit for bit in range(4, 13))
"""Rights to create or remove the entries of a directory."""
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_TCP = 0b11
_SCOPE = 0b11
"""Blocks signals and abstract sockets to processes that are not under these rules."""


class Confinement(StrEnum):
    CODEC = "codec"
    PREDICTOR = "predictor"


MEASURES = ("no_new_privileges", "landlock", "seccomp")


def confine_files(kind: Confinement, reading: Iterable[Path], writing: Iterable[Path]) -> list[str]:
    """Confine this process to its code, `reading` and `writing`; returns the measures in force.

    Call it before the first thread is started: existing threads are not confined.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return []
    _drop_capabilities(libc)
    devices = [Path("/dev/null")]
    if kind is Confinement.PREDICTOR:
        devices += Path("/dev").glob("nvidia*")
        _make_cache()
    held = restrict(reading=[*_code(), *reading], writing=[*devices, *writing])
    return ["no_new_privileges", *(["landlock"] if held else [])]


def confine_calls(kind: Confinement) -> list[str]:
    """Install the system-call filter for all threads; returns the measures in force."""
    codec = kind is Confinement.CODEC
    devices = not codec and Path("/dev/nvidiactl").exists()
    return ["seccomp"] if seccomp.install(codec=codec, devices=devices) else []


def restrict(*, reading: Iterable[Path], writing: Iterable[Path]) -> int:
    """Let this thread read files only under `reading`, write only under `writing`, and use no TCP.

    See landlock(7). A process under Landlock rules can read neither the memory nor the environment
    of a process that is not under them, even if both belong to the same user.

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
    allowed = [(path, write | read) for path in writing] + [(path, read) for path in reading]
    try:
        for path, access in allowed:
            with contextlib.suppress(OSError):
                descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
                try:
                    if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
                        access &= _READ_FILE | _WRITE_FILE | _TRUNCATE
                    call(_ADD, rules, 1, struct.pack("=Qi", access, descriptor), 0)
                finally:
                    os.close(descriptor)
        return version if call(_RESTRICT, rules, 0) == 0 else 0
    finally:
        os.close(rules)


def _make_cache() -> None:
    """Create the directory that Paddle creates on import; without it, the import fails."""
    with contextlib.suppress(OSError, RuntimeError):
        home = Path("~").expanduser()
        os.environ.setdefault("HOME", str(home))  # /etc/passwd cannot be read later
        (home / ".cache/paddle/dataset").mkdir(parents=True, exist_ok=True)


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    header = struct.pack("=Ii", _CAPABILITIES_VERSION, 0)
    data = ctypes.create_string_buffer(24)
    if libc.capget(header, data) == 0:
        effective, permitted, *_ = struct.unpack("=6I", data.raw)
        kept = (effective & _KEPT, permitted & _KEPT, 0, 0, 0, 0)
        libc.capset(header, struct.pack("=6I", *kept))


def _code() -> Iterator[Path]:
    """Yield the paths of programs and libraries.

    The directory that contains the package is included only if the package is installed there with
    other libraries (`pip install --user` or `--target`). In a checkout, it may also contain keys.
    """
    yield from map(Path, (*_SYSTEM, *_DEVICES, sys.prefix, sys.base_prefix))
    yield from (Path("/proc", name) for name in _PROC)
    beside = _PACKAGE.parent.resolve()
    installed = any(beside.glob("paddlepool-*.dist-info"))
    found = map(Path, filter(None, sys.path))
    yield from (path for path in found if installed or path.resolve() != beside)
    yield _PACKAGE
    yield from map(Path, filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":")))
