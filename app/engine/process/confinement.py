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
import struct
import sys
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path

from app.engine.process import landlock, seccomp

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
    held = landlock.restrict(reading=[*_code(), *reading], writing=[*devices, *writing])
    return ["no_new_privileges", *(["landlock"] if held else [])]


def confine_calls(kind: Confinement) -> list[str]:
    """Install the system-call filter for all threads; returns the measures in force."""
    codec = kind is Confinement.CODEC
    devices = not codec and Path("/dev/nvidiactl").exists()
    return ["seccomp"] if seccomp.install(codec=codec, devices=devices) else []


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
