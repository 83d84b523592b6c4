"""Confines a child process, in case a client's data makes it run foreign code.

Codecs and predictors get no new privileges and can create no sockets. They cannot start, signal or
inspect other processes, change the mode or owner of a file, or use a terminal. They read only code,
libraries and information about the system; a predictor also reads its model. They write only to
/dev/null. A predictor also writes to the devices of a GPU. If it converts its program or uses a
GPU, its system calls are confined only once it is open; to convert a program or export a compiled
one, it also writes to a temporary directory. If the kernel lacks Landlock or seccomp, the other
measures still apply; the parent gets the list of the measures in force.
"""

import contextlib
import ctypes
import errno
import os
import platform
import stat
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path

_PR_SET_NO_NEW_PRIVS = 38
_CAPABILITIES_VERSION = 0x20080522
_CAPABILITIES = 1 << 1 | 1 << 2
"""The capabilities that a child of root keeps: to access files of other users, who may own the code
or a model. With root's other capabilities, the child could inspect processes and change the system
despite the measures below."""
_SYSTEM = ("/usr", "/lib", "/lib64", "/sys", "/etc/ld.so.cache", "/etc/localtime")
_PROC = ("self", "cpuinfo", "meminfo", "stat", "version", "filesystems", "sys", "driver", "devices")
"""Entries of /proc that are not about other processes."""
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
"""Devices that every child may read."""
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
    """Confine this process to its code, `reading` and `writing`; return the MEASURES in force.

    It can then read files only of its code, libraries and the system, and below `reading` and
    `writing`; it can write only below `writing`, to /dev/null and, as a predictor, to the devices
    of a GPU. Also drops most capabilities, and creates the cache directory that a predictor needs.
    Call it before the first thread is started: existing threads are not confined, and "landlock" is
    then not returned. Does nothing, and returns [], if the kernel cannot deny new privileges.
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
    alone = len([*Path("/proc/self/task").iterdir()]) == 1
    return ["no_new_privileges", *(["landlock"] if held and alone else [])]


def restrict(*, reading: Iterable[Path], writing: Iterable[Path]) -> int:
    """Let this thread read only `reading` and `writing`, write only `writing`, and use no TCP.

    The rules hold for these files, for all files below these directories, and for threads that are
    started later: see landlock(7). A process under Landlock rules can read neither the memory nor
    the environment of a process that is not under them, even if both belong to the same user.

    Returns the version of Landlock that the kernel supports, or 0 if the rules are not in force.
    Versions below 4 do not cover TCP, and below 6 neither signals nor abstract sockets. Files that
    are already open stay accessible. Paths that cannot be opened are skipped.
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
    """Create the directory that the import of Paddle needs, and could not create when confined."""
    with contextlib.suppress(OSError, RuntimeError):
        cache = Path("~/.cache/paddle/dataset").expanduser()
        cache.mkdir(parents=True, exist_ok=True)


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    header = struct.pack("=Ii", _CAPABILITIES_VERSION, 0)
    data = ctypes.create_string_buffer(24)
    if libc.capget(header, data) == 0:
        effective, permitted, *_ = struct.unpack("=6I", data.raw)
        limited = (effective & _CAPABILITIES, permitted & _CAPABILITIES, 0, 0, 0, 0)
        libc.capset(header, struct.pack("=6I", *limited))


def _code() -> Iterator[Path]:
    """Yield the paths that every child may read: programs, libraries and facts about the system.

    The directory that contains the package is included only if the package is installed there with
    other libraries (`pip install --user` or `--target`). That of a checkout may contain keys.
    """
    yield from map(Path, (*_SYSTEM, *_DEVICES, sys.prefix, sys.base_prefix))
    yield from (Path("/proc", name) for name in _PROC)
    beside = _PACKAGE.parent.resolve()
    installed = any(beside.glob("paddlepool-*.dist-info"))
    paths = map(Path, filter(None, sys.path))
    yield from (path for path in paths if installed or path.resolve() != beside)
    yield _PACKAGE
    yield from map(Path, filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":")))


# System calls: number on x86_64 and on aarch64, from Linux's tables; _NONE if there is none.
_NONE = 0xFFFFFFFF
_REFUSED = {
    "execve": (59, 221), "execveat": (322, 281), "fork": (57, _NONE), "vfork": (58, _NONE),
    "socket": (41, 198), "socketpair": (53, 199),
    "io_uring_setup": (425, 425),  # requests of io_uring bypass filters
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "tkill": (200, 130), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424), "pidfd_getfd": (438, 438),
    "setpriority": (141, 140), "sched_setscheduler": (144, 119), "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
    "ioprio_set": (251, 30), "open_by_handle_at": (304, 265),
    "unshare": (272, 97), "setns": (308, 268),  # would give all capabilities in a new namespace
    # Shared memory, queues and keys of other processes are not files, so Landlock ignores them.
    # Their numbers can be guessed without knowing a name.
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195),
    "semget": (64, 190), "semop": (65, 193), "semctl": (66, 191), "semtimedop": (220, 192),
    "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188), "msgctl": (71, 187),
    "mq_open": (240, 180), "mq_unlink": (241, 181),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "inotify_init": (253, _NONE), "inotify_init1": (294, 26), "fanotify_init": (300, 262),
    # Landlock does not cover modes, owners and times; a read-only descriptor is enough to set them.
    "utime": (132, _NONE), "utimes": (235, _NONE), "futimesat": (261, _NONE),
    "utimensat": (280, 88), "file_setattr": (469, 469),
    "chmod": (90, _NONE), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "chown": (92, _NONE), "fchown": (93, 55), "lchown": (94, _NONE), "fchownat": (260, 54),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "setxattrat": (463, 463),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
    "removexattrat": (466, 466),
}  # fmt: skip
_REFUSED_TO_CODECS = {
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "sched_setaffinity": (203, 122),
}  # fmt: skip
_CLONE3 = 435
"""Number of clone3(). Its arguments are in memory, which a filter cannot read. The filter makes
every call fail with ENOSYS, so that libraries fall back to clone()."""
_KILL, _TGKILL, _PRLIMIT, _CLONE = (62, 129), (234, 131), (302, 261), (56, 220)
_FCNTL, _IOCTL, _SET_AFFINITY, _CLOSE_RANGE = (72, 25), (16, 29), (203, 122), (436, 436)
_ARCHITECTURES = {"x86_64": (0, 0xC000003E, 317), "aarch64": (1, 0xC00000B7, 277)}
"""Column in the tables above, the kernel's AUDIT_ARCH value, number of seccomp()."""

_THREAD = 0x10000 | 0x400
"""CLONE_THREAD and CLONE_FILES, which every clone() must have. All threads thus share one file
table, and the parent can see all open files in /proc/PID/fd."""
_OWN_FILES = 2
"""CLOSE_RANGE_UNSHARE, which gives a thread its own file table."""
_REFUSED_TO_FILES = (8, 15, 1024)
"""Commands of fcntl(): F_SETOWN and F_SETOWN_EX make the kernel send signals to another process;
F_SETLEASE delays any process that opens the file for writing."""
_IOCTLS = (0x6600, 0x7600, 0x5800, 0x9400, 0xF500, 0x8900)
"""Types of ioctl() requests to file systems ("f", "v", "X", Btrfs and F2FS: flags, versions,
encryption) and to sockets (who gets their signals). Most need only a read-only descriptor."""
_TYPE_OF_IOCTL = 0xFF00
_X32 = 0x40000000

_LOAD, _AND, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_REFUSE, _ARGUMENTS = 0x00050000, 16

Instruction = tuple[int, int, int, int]
"""Operation, jump if true, jump if false, value."""

_ALLOW: Instruction = (_RETURN, 0, 0, 0x7FFF0000)
_EPERM: Instruction = (_RETURN, 0, 0, _REFUSE | errno.EPERM)


def confine_calls(kind: Confinement) -> list[str]:
    """Install a system-call filter for this process and all its threads; it cannot be removed.

    It rejects what Landlock does not cover, or covers only in newer kernels, such as starting
    programs and processes, sockets, signals to others, and changing the mode or owner of a file. It
    is a program in classic BPF, which the kernel runs before each call: see seccomp(2).

    It also rejects every ioctl, with one exception: on a machine with an NVIDIA GPU, whose driver
    may need ioctls, a predictor may make all but those of _IOCTLS. For a codec it also rejects
    memory files (memfd) and every change of processor affinity.

    Returns ["seccomp"], or [] if the filter cannot be installed.
    """
    known = _ARCHITECTURES.get(platform.machine())
    if known is None:
        return []
    column, architecture, call = known
    codec = kind is Confinement.CODEC
    devices = not codec and Path("/dev/nvidiactl").exists()
    program = _program(column, architecture, codec=codec, devices=devices)
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
    memory = ctypes.create_string_buffer(code, len(code))
    described = struct.pack("@HP", len(program), ctypes.addressof(memory))
    # SECCOMP_SET_MODE_FILTER for all threads (TSYNC), without speculation mitigations (SPEC_ALLOW),
    # which would slow down computation.
    failed = ctypes.CDLL(None, use_errno=True).syscall(call, 1, 1 | 4, described)
    return [] if failed else ["seccomp"]


def _program(column: int, architecture: int, *, codec: bool, devices: bool) -> list[Instruction]:
    refused = _REFUSED | (_REFUSED_TO_CODECS if codec else {})
    itself = os.getpid()
    return [
        (_LOAD, 0, 0, 4),
        (_EQUAL, 1, 0, architecture),
        _EPERM,
        (_LOAD, 0, 0, 0),
        (_AT_LEAST, 0, 1, _X32),
        _EPERM,
        *(
            step
            for numbers in refused.values()
            for step in ((_EQUAL, 0, 1, numbers[column]), _EPERM)
        ),
        (_EQUAL, 0, 1, _CLONE3),
        (_RETURN, 0, 0, _REFUSE | errno.ENOSYS),
        *_by_argument(_KILL[column], 0, (itself,), _ALLOW, _EPERM),
        *_by_argument(_TGKILL[column], 0, (itself,), _ALLOW, _EPERM),
        *_by_argument(_PRLIMIT[column], 0, (0, itself), _ALLOW, _EPERM),
        *_by_argument(_SET_AFFINITY[column], 0, (0, itself), _ALLOW, _EPERM),
        *_by_argument(_FCNTL[column], 1, _REFUSED_TO_FILES, _EPERM, _ALLOW),
        *_by_argument(_CLOSE_RANGE[column], 2, (_OWN_FILES,), _EPERM, _ALLOW, mask=_OWN_FILES),
        *_by_argument(
            _IOCTL[column], 1, _IOCTLS, _EPERM, _ALLOW if devices else _EPERM, mask=_TYPE_OF_IOCTL
        ),
        *_by_argument(_CLONE[column], 0, (_THREAD,), _ALLOW, _EPERM, mask=_THREAD),
        _ALLOW,
    ]


def _by_argument(
    number: int,
    argument: int,
    values: Sequence[int],
    match: Instruction,
    otherwise: Instruction,
    *,
    mask: int = 0xFFFFFFFF,
) -> list[Instruction]:
    """Return BPF instructions that check one argument of the system call `number`.

    If the argument with this index, after & `mask`, is in `values`, they end the program with
    `match`, else with `otherwise`. For other system calls, the program continues after them. Only
    the lower half of the argument is loaded: in these calls the kernel ignores the rest.
    """
    tests = [(_EQUAL, len(values) - place, 0, value) for place, value in enumerate(values)]
    load = [(_LOAD, 0, 0, _ARGUMENTS + 8 * argument), (_AND, 0, 0, mask)]
    block = [*load, *tests, otherwise, match]
    return [(_EQUAL, 0, len(block), number), *block]
