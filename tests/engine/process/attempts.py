"""What a stranger's code would try in a child process: fifty probes, each named after its aim."""

import ctypes
import errno
import fcntl
import json
import os
import platform
import resource
import socket
import stat
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import paddlepool

NUMBERS = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "pidfd_open": (434, 434),
    "unshare": (272, 97),
    "io_uring_setup": (425, 425),
    "shmget": (29, 194),
    "semget": (64, 190),
    "semctl": (66, 191),
    "msgget": (68, 186),
    "msgrcv": (70, 188),
    "mq_unlink": (241, 181),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "inotify_init1": (294, 26),
    "ioprio_set": (251, 30),
    "open_by_handle_at": (304, 265),
    "clone": (56, 220),
    "close_range": (436, 436),
}
"""On x86_64 and on aarch64."""
PTRACE_ATTACH, CLONE_NEWUSER, F_SETOWN_EX, FIOSETOWN = 16, 0x10000000, 15, 0x8901
CLONE_THREAD, CLOSE_RANGE_UNSHARE, F_SETLEASE = 0x10000, 2, 1024
IOPRIO_WHO_PROCESS, IOPRIO_IDLE = 1, 3 << 13
FS_IOC_SETFLAGS = 0x40086602
GETVAL, IPC_NOWAIT = 12, 0o4000
KEYCTL_GET_KEYRING_ID, SESSION_KEYRING = 0, -3
ROOT = Path(__file__).parents[3]

Probes = Mapping[str, Callable[[], object]]


def _call(name: str, *arguments: object) -> None:
    number = NUMBERS[name][platform.machine() == "aarch64"]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), "refused")


def _by_descriptor(change: Callable[[int], object]) -> None:
    """Change a file that it may only read; what is tried leaves the file as it was."""
    descriptor = os.open(__file__, os.O_RDONLY)
    try:
        change(descriptor)
    finally:
        os.close(descriptor)


def _same_mode(descriptor: int) -> None:
    os.fchmod(descriptor, stat.S_IMODE(os.fstat(descriptor).st_mode))


def _secrets() -> None:
    if not any("secret" in value for value in os.environ.values()):
        raise PermissionError(errno.EACCES, "there is none")


def _fork() -> None:
    if os.fork() == 0:
        os._exit(0)


def _in_thread(attempt: Callable[[], object]) -> None:
    with ThreadPoolExecutor(1) as thread:
        thread.submit(attempt).result()


def probes(folder: Path) -> Probes:
    """`folder` holds a key file `key` and a repository `models` with the model `mine` of the
    predictor and another one, `other`. It is the working directory and the home."""
    parent = os.getppid()
    mine, other, key = folder / "models/mine/1", folder / "models/other/1", folder / "key"
    weights = mine / "weights"
    proc = Path("/proc", str(parent))
    reading: Probes = {
        "read its code": Path(paddlepool.__file__).read_bytes,
        "read its model": weights.read_bytes,
        "read another model": (other / "weights").read_bytes,
        "read the keys": key.read_bytes,
        "read passwords": Path("/etc/shadow").read_bytes,
        "read beside its code": (ROOT / "pyproject.toml").read_bytes,
        "list the checkout": lambda: list(ROOT.iterdir()),
        "list the home": lambda: list(folder.iterdir()),
        "list temporary files": lambda: list(Path("/tmp").iterdir()),  # noqa: S108
        "list everything": lambda: list(Path("/").iterdir()),
        "read a device": lambda: Path("/dev/full").open("rb").close(),
    }
    writing: Probes = {
        "create": lambda: (folder / "new").write_bytes(b""),
        "create in a thread": lambda: _in_thread((folder / "new").touch),
        "create a temporary file": lambda: Path(f"/tmp/attempt-{os.getpid()}").touch(),  # noqa: S108
        "create shared memory": lambda: Path(f"/dev/shm/attempt-{os.getpid()}").touch(),  # noqa: S108
        "add to its model": lambda: (mine / "new").write_bytes(b""),
        "overwrite its model": lambda: weights.write_bytes(b""),
        "append to its model": lambda: weights.open("ab").close(),
        "overwrite its code": lambda: Path(paddlepool.__file__).open("ab").close(),
        "truncate": lambda: os.truncate(key, 0),
        "remove": key.unlink,
        "rename": lambda: key.rename(folder / "other"),
        "make a directory": (folder / "directory").mkdir,
        "link": lambda: (folder / "link").symlink_to(key),
        "spare itself when memory is out": lambda: Path("/proc/self/oom_score_adj").write_text("0"),
        "change a mode": lambda: key.chmod(0o4755),
        "change a mode by descriptor": lambda: _by_descriptor(_same_mode),
        "change a time": lambda: os.utime(key),
        "change a time by descriptor": lambda: _by_descriptor(os.utime),
        "change an owner": lambda: os.chown(key, -1, -1),
        "change an owner by descriptor": lambda: _by_descriptor(lambda d: os.chown(d, -1, -1)),
        "change flags": lambda: _by_descriptor(
            lambda d: fcntl.ioctl(d, FS_IOC_SETFLAGS, struct.pack("q", 0))
        ),
        "change an access list": lambda: _by_descriptor(
            lambda d: os.setxattr(d, "system.posix_acl_access", b"", os.XATTR_REPLACE)
        ),
    }
    others: Probes = {
        "find a key in its environment": _secrets,
        "the parent's environment": (proc / "environ").read_bytes,
        "the parent's arguments": (proc / "cmdline").read_bytes,
        "the parent's memory": lambda: (proc / "mem").open("rb").close(),
        "the parent's memory by a call": lambda: _call("process_vm_readv", parent, 0, 0, 0, 0, 0),
        "trace the parent": lambda: _call("ptrace", PTRACE_ATTACH, parent, 0, 0),
        "hold the parent": lambda: _call("pidfd_open", parent, 0),
        "limit the parent": lambda: resource.prlimit(parent, resource.RLIMIT_NOFILE, (9, 9)),
        "lower the parent's priority": lambda: os.setpriority(os.PRIO_PROCESS, parent, 19),
        "make the parent idle": lambda: os.sched_setscheduler(
            parent, os.SCHED_IDLE, os.sched_param(0)
        ),
        "pin the parent": lambda: os.sched_setaffinity(parent, os.sched_getaffinity(parent)),
        "make the parent's disk idle": lambda: _call(
            "ioprio_set", IOPRIO_WHO_PROCESS, parent, IOPRIO_IDLE
        ),
        "hold up writers": lambda: _by_descriptor(
            lambda d: fcntl.fcntl(d, F_SETLEASE, fcntl.F_UNLCK)
        ),
        "files by handle": lambda: _call("open_by_handle_at", -1, None, 0),
        "files that /proc does not show": lambda: _in_thread(
            lambda: _call("close_range", 1 << 20, 1 << 20, CLOSE_RANGE_UNSHARE)
        ),
        "a thread with files of its own": lambda: _call("clone", CLONE_THREAD, 0, 0, 0, 0),
        "memory with a name": lambda: _call("shmget", 0, 4096, 0o1600),
        "a semaphore": lambda: _call("semget", 0, 1, 0o1600),
        "a semaphore by number": lambda: _call("semctl", 0, 0, GETVAL),
        "a queue of messages": lambda: _call("msgget", 0, 0o1600),
        "messages by number": lambda: _call("msgrcv", 0, None, 0, 0, IPC_NOWAIT),
        "remove a named queue": lambda: _call("mq_unlink", b"attempt"),
        "keys of the kernel": lambda: _call("keyctl", KEYCTL_GET_KEYRING_ID, SESSION_KEYRING, 0),
        "a key of its own": lambda: _call("add_key", b"user", b"attempt", b"1", 1, -2),
        "watch files": lambda: _call("inotify_init1", 0),
        "signal the parent": lambda: os.kill(parent, 0),
        "signal its group": lambda: os.kill(0, 0),
        "signal everybody": lambda: os.kill(-1, 0),
        "have signals sent": lambda: fcntl.fcntl(2, fcntl.F_SETOWN, parent),
        "have signals sent to any": lambda: fcntl.fcntl(
            2, F_SETOWN_EX, struct.pack("ii", 1, parent)
        ),
        "have signals sent by a device": lambda: fcntl.ioctl(
            2, FIOSETOWN, struct.pack("i", parent)
        ),
    }
    starting: Probes = {
        "exec": lambda: os.execv("/bin/true", ["true"]),  # noqa: S606
        "subprocess": lambda: subprocess.run([sys.executable, "-c", ""], check=True),
        "fork": _fork,
        "a namespace of its own": lambda: _call("unshare", CLONE_NEWUSER),
        "socket": lambda: socket.socket(socket.AF_INET),
        "socket in a thread": lambda: _in_thread(lambda: socket.socket(socket.AF_INET)),
        "unix socket": lambda: socket.socket(socket.AF_UNIX),
        "socketpair": lambda: socket.socketpair(),
        "a ring of requests": lambda: _call("io_uring_setup", 1, ctypes.create_string_buffer(120)),
        "a file of memory": lambda: os.close(os.memfd_create("memory")),
    }
    return {**reading, **writing, **others, **starting}


def outcomes(tried: Probes) -> dict[str, str]:
    """By name: the error that stopped it, or "done"."""
    results = {}
    for name, attempt in tried.items():
        try:
            attempt()
        except OSError as refused:
            results[name] = errno.errorcode[refused.errno or 0]
        else:
            results[name] = "done"
    return results


def in_codec(
    meta: Mapping[str, Any], arrays: Mapping[str, Any], descriptors: Sequence[int]
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    return outcomes(probes(Path(meta["folder"]))), {}


def open_predictor(opening: Mapping[str, Any]) -> tuple[Mapping[str, Any], Any]:
    """Answers with JSON in an array: what could be done while it opened, and in a call from a
    thread that has been there since, as those of the frameworks have."""
    ready = threading.Event()
    opened = outcomes(probes(Path(opening["options"]["folder"])))
    results: dict[str, str] = {}

    def before() -> None:
        ready.wait()
        results.update(outcomes(probes(Path(opening["options"]["folder"]))))

    thread = threading.Thread(target=before, daemon=True)
    thread.start()

    def handle(*_: object) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        ready.set()
        thread.join()
        return {}, {"0": np.frombuffer(json.dumps([opened, results]).encode(), np.uint8)}

    return {}, handle


def open_printing(_opening: Mapping[str, Any]) -> tuple[Mapping[str, Any], Any]:
    """Tries what the process can do to its parent's terminal and standard error, and prints."""

    def read_again() -> None:
        again = os.open("/proc/self/fd/2", os.O_RDONLY | os.O_NONBLOCK)
        os.read(again, 100)

    def handle(*_: object) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        tried: Probes = {
            "its own": lambda: os.close(os.open("/dev/tty", os.O_RDONLY)),
            "read": lambda: os.read(2, 100),
            "read again": read_again,
            "truncate": lambda: os.ftruncate(2, 0),
            "overwrite": lambda: os.pwrite(2, b"#", 0),
        }
        results = outcomes(tried)
        os.write(2, b"written")
        return results, {}

    return {}, handle
