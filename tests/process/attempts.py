"""What a stranger's code would try in a child process; each returns the name of what stopped it."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

PTRACE_ATTACH = 16
PTRACE_NUMBER = {"x86_64": 101, "aarch64": 117}


def _ptrace() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(PTRACE_NUMBER[platform.machine()], PTRACE_ATTACH, os.getppid(), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "ptrace")


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
        "create in a thread": lambda: _in_thread((folder / "new").touch),
        "socket in a thread": lambda: _in_thread(lambda: socket.socket(socket.AF_INET)),
    }


def outcomes(folder: Path) -> dict[str, str]:
    """By name: the error that stopped it, or "done"."""
    found = {}
    for name, attempt in attempts(folder).items():
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
    return outcomes(Path(meta["folder"])), {}


def open_predictor(_opening: Mapping[str, Any]) -> tuple[Mapping[str, Any], Any]:
    ready = threading.Event()
    found: dict[str, str] = {}

    def before() -> None:
        """A thread that is older than the filter, as those of the frameworks are."""
        ready.wait()
        found.update(outcomes(Path(folder[0])))

    folder: list[str] = []
    thread = threading.Thread(target=before, daemon=True)
    thread.start()

    def handle(meta: Mapping[str, Any], *_: object) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        folder.append(str(meta["folder"]))
        ready.set()
        thread.join()
        return found, {}

    return {}, handle
