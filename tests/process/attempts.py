"""What a stranger's code would try in a child process; each returns the name of what stopped it."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import resource
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

PTRACE_ATTACH = 16
PTRACE_NUMBER = {"x86_64": 101, "aarch64": 117}
F_SETOWN_EX = 15
FIOSETOWN = 0x8901


def _call(numbers: Mapping[str, int], *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(numbers[platform.machine()], *arguments) != 0:
        raise OSError(ctypes.get_errno(), "refused")


def _ptrace() -> None:
    _call(PTRACE_NUMBER, PTRACE_ATTACH, os.getppid(), 0, 0)


def _by_descriptor(change: Callable[[int], object]) -> None:
    """To a file that it may read; what is tried leaves it as it was."""
    descriptor = os.open(__file__, os.O_RDONLY)
    try:
        change(descriptor)
    finally:
        os.close(descriptor)


def _same_mode(descriptor: int) -> None:
    os.fchmod(descriptor, stat.S_IMODE(os.fstat(descriptor).st_mode))


def _read_parent(name: str) -> None:
    with Path(f"/proc/{os.getppid()}/{name}").open("rb") as file:
        file.read(1)


def _in_thread(attempt: Callable[[], object]) -> None:
    raised: list[BaseException] = []

    def run() -> None:
        try:
            attempt()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]


def _fork() -> None:
    if os.fork() == 0:
        os._exit(0)


def attempts(folder: Path) -> dict[str, Callable[[], object]]:
    there = folder / "there"
    return {
        "socket": lambda: socket.socket(socket.AF_INET),
        "unix socket": lambda: socket.socket(socket.AF_UNIX),
        "socketpair": lambda: socket.socketpair(),
        "exec": lambda: os.execv("/bin/true", ["true"]),  # noqa: S606
        "subprocess": lambda: subprocess.run([sys.executable, "-c", ""], check=True),
        "fork": _fork,
        "ptrace": _ptrace,
        "kill the parent": lambda: os.kill(os.getppid(), signal.SIGTERM),
        "probe the parent": lambda: os.kill(os.getppid(), 0),
        "limit the parent": lambda: resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (9, 9)),
        "the parent's environment": lambda: _read_parent("environ"),
        "the parent's memory": lambda: _read_parent("mem"),
        "create": lambda: (folder / "new").write_bytes(b""),
        "overwrite": lambda: there.write_bytes(b""),
        "append": lambda: there.open("ab").close(),
        "truncate": lambda: os.truncate(there, 0),
        "remove": there.unlink,
        "rename": lambda: there.rename(folder / "other"),
        "make a directory": (folder / "directory").mkdir,
        "link": lambda: (folder / "link").symlink_to(there),
        "read": there.read_bytes,
        "change a mode": lambda: there.chmod(0o4755),
        "change a mode by descriptor": lambda: _by_descriptor(_same_mode),
        "change an owner": lambda: os.chown(there, -1, -1),
        "change an access list": lambda: _by_descriptor(
            lambda d: os.setxattr(d, "system.posix_acl_access", b"", os.XATTR_REPLACE)
        ),
        "change an owner by descriptor": lambda: _by_descriptor(lambda d: os.chown(d, -1, -1)),
        "have signals sent": lambda: fcntl.fcntl(2, fcntl.F_SETOWN, os.getppid()),
        "have signals sent to any": lambda: fcntl.fcntl(
            2, F_SETOWN_EX, struct.pack("ii", 1, os.getppid())
        ),
        "have signals sent by a device": lambda: fcntl.ioctl(
            2, FIOSETOWN, struct.pack("i", os.getppid())
        ),
        "lower the parent's priority": lambda: os.setpriority(os.PRIO_PROCESS, os.getppid(), 19),
        "lower a user's priority": lambda: os.setpriority(os.PRIO_USER, 0, 19),
        "make the parent idle": lambda: os.sched_setscheduler(
            os.getppid(), os.SCHED_IDLE, os.sched_param(0)
        ),
        "read a device": lambda: Path("/dev/full").open("rb").close(),
        "make a file of memory": lambda: os.close(os.memfd_create("memory")),
        "create in a thread": lambda: _in_thread((folder / "new").touch),
        "socket in a thread": lambda: _in_thread(lambda: socket.socket(socket.AF_INET)),
    }


def outcomes(tried: Mapping[str, Callable[[], object]]) -> dict[str, str]:
    """By name: the error that stopped it, or "done"."""
    found = {}
    for name, attempt in tried.items():
        try:
            attempt()
        except OSError as refused:
            found[name] = errno.errorcode[refused.errno or 0]
        else:
            found[name] = "done"
    return found


def in_codec(
    meta: Mapping[str, Any], arrays: Mapping[str, Any], descriptors: Sequence[int]
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    return outcomes(attempts(Path(meta["folder"]))), {}


def open_terminal(_opening: Mapping[str, Any]) -> tuple[Mapping[str, Any], Any]:
    """Says what the process has of its parent's terminal."""

    def handle(*_: object) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        os.write(2, b"written")
        tried: dict[str, Callable[[], object]] = {
            "its own": lambda: os.close(os.open("/dev/tty", os.O_RDONLY)),
            "read": lambda: os.read(2, 0),
        }
        return outcomes(tried), {}

    return {}, handle


def open_predictor(_opening: Mapping[str, Any]) -> tuple[Mapping[str, Any], Any]:
    ready = threading.Event()
    found: dict[str, str] = {}

    def before() -> None:
        """A thread that is older than the filter, as those of the frameworks are."""
        ready.wait()
        found.update(outcomes(attempts(Path(folder[0]))))

    folder: list[str] = []
    thread = threading.Thread(target=before, daemon=True)
    thread.start()

    def handle(meta: Mapping[str, Any], *_: object) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        folder.append(str(meta["folder"]))
        ready.set()
        thread.join()
        return found, {}

    return {}, handle
