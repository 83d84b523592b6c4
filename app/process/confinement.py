"""What a child may not do: a stranger's bytes may one day run their own code in it.

Both kinds get no new privileges, no sockets, no other processes to start, signal or look into, no
mode or owner of a file to change, and no terminal. `CODEC` may also open no file for writing and
read only what Python and its libraries are made of;
`PREDICTOR` may write beneath the temporary directory and Paddle's cache, where frameworks convert
models, and to devices. Where the kernel refuses one of these the others hold, and who started the
child is told.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

from app.process import landlock, seccomp

_PR_SET_NO_NEW_PRIVS = 38
_CAPABILITIES_VERSION = 0x20080522
_KEPT = 1 << 1 | 1 << 2
"""Of root's: to read files of other users, which the code or a model may be. The others would let
it look into processes and change the system whatever stands below."""
_ROOTS = ("/usr", "/lib", "/lib64", "/proc", "/sys", "/etc/ld.so.cache", "/etc/localtime")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
"""The others are disks and terminals."""


class Confinement(StrEnum):
    CODEC = "codec"
    PREDICTOR = "predictor"


MEASURES = ("no_new_privileges", "landlock", "seccomp")


def confine_early(kind: Confinement) -> list[str]:
    """Before the first thread is started: it would stay free. Returns what is in force."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return []
    _drop_capabilities(libc)
    if kind is Confinement.CODEC:
        held = landlock.restrict(reading=_code(), writing=())
    else:
        cache = Path("~/.cache/paddle").expanduser()  # Paddle keeps translated networks there
        with contextlib.suppress(OSError):
            cache.mkdir(parents=True, exist_ok=True)
        writing = (Path(os.environ.get("TMPDIR") or "/tmp"), Path("/dev"), cache)  # noqa: S108
        held = landlock.restrict(reading=None, writing=writing)
    return ["no_new_privileges", *(["landlock"] if held else [])]


def confine(kind: Confinement) -> list[str]:
    """Once the child is open: frameworks may ask the system more while they load. Holds for all
    threads. Returns what is in force."""
    return ["seccomp"] if seccomp.install(codec=kind is Confinement.CODEC) else []


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    header = struct.pack("=Ii", _CAPABILITIES_VERSION, 0)
    data = ctypes.create_string_buffer(24)
    if libc.capget(header, data) == 0:
        effective, permitted, *_ = struct.unpack("=6I", data.raw)
        kept = (effective & _KEPT, permitted & _KEPT, 0, 0, 0, 0)
        libc.capset(header, struct.pack("=6I", *kept))


def _code() -> Iterator[Path]:
    yield from map(Path, (*_ROOTS, *_DEVICES, sys.prefix, sys.base_prefix, *filter(None, sys.path)))
    yield Path(__file__).parents[1]
    yield from map(Path, filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":")))
