"""What a child may not do: a stranger's bytes may one day run their own code in it.

Both kinds get no new privileges, no sockets, no other processes to start, signal or look into, no
mode or owner of a file to change, and no terminal. They read only code, libraries and what the
system says about itself; a `PREDICTOR` also its model. They write to devices alone, which are those
of a GPU for a predictor. Where the kernel lacks one of these measures the others hold, and whoever
started the child gets the list of what holds.
"""

from __future__ import annotations

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
"""Of root's: to read files of other users, which the code or a model may be. The others would let
it look into processes and change the system whatever stands below."""
_SYSTEM = ("/usr", "/lib", "/lib64", "/sys", "/etc/ld.so.cache", "/etc/localtime")
_PROC = ("self", "cpuinfo", "meminfo", "stat", "version", "filesystems", "sys", "driver", "devices")
"""Not of other processes."""
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
"""The others are disks, terminals and shared memory."""
_PACKAGE = Path(__file__).parents[2]


class Confinement(StrEnum):
    CODEC = "codec"
    PREDICTOR = "predictor"


MEASURES = ("no_new_privileges", "landlock", "seccomp")


def confine_files(kind: Confinement, reading: Iterable[Path], writing: Iterable[Path]) -> list[str]:
    """Confine this process to its code, `reading` and `writing`; returns what is in force.

    Call it before the first thread is started: that one would stay free.
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
    """Install the filter of system calls for all threads; returns what is in force."""
    codec = kind is Confinement.CODEC
    devices = not codec and Path("/dev/nvidiactl").exists()
    return ["seccomp"] if seccomp.install(codec=codec, devices=devices) else []


def _make_cache() -> None:
    """Make the directory that Paddle makes when it is imported, and fails without."""
    with contextlib.suppress(OSError, RuntimeError):
        home = Path("~").expanduser()
        os.environ.setdefault("HOME", str(home))  # the list of users cannot be read later
        (home / ".cache/paddle/dataset").mkdir(parents=True, exist_ok=True)


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    header = struct.pack("=Ii", _CAPABILITIES_VERSION, 0)
    data = ctypes.create_string_buffer(24)
    if libc.capget(header, data) == 0:
        effective, permitted, *_ = struct.unpack("=6I", data.raw)
        kept = (effective & _KEPT, permitted & _KEPT, 0, 0, 0, 0)
        libc.capset(header, struct.pack("=6I", *kept))


def _code() -> Iterator[Path]:
    """Where programs and libraries are. Of a checkout only the package: keys may lie beside it.

    Libraries lie beside an installed package (`pip install --user` or `--target`).
    """
    yield from map(Path, (*_SYSTEM, *_DEVICES, sys.prefix, sys.base_prefix))
    yield from (Path("/proc", name) for name in _PROC)
    beside = _PACKAGE.parent.resolve()
    installed = any(beside.glob("paddlepool-*.dist-info"))
    found = map(Path, filter(None, sys.path))
    yield from (path for path in found if installed or path.resolve() != beside)
    yield _PACKAGE
    yield from map(Path, filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":")))
