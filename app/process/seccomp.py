"""A filter of system calls for this process and all its threads, which no later call takes off.

The numbers are those of Linux, from its syscall tables; the program is classic BPF, which the
kernel runs before each call: see seccomp(2).
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import stat
import struct
from collections.abc import Iterable, Iterator, Sequence

# name: number on x86_64 and on aarch64, -1 where there is none
_PROCESSES = {
    "execve": (59, 221), "execveat": (322, 281), "fork": (57, -1), "vfork": (58, -1),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "process_madvise": (440, 440), "kcmp": (312, 272), "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424), "pidfd_open": (434, 434), "pidfd_getfd": (438, 438),
    "migrate_pages": (256, 238), "move_pages": (279, 239),
}  # fmt: skip
_NETWORK = {
    "socket": (41, 198), "socketpair": (53, 199), "connect": (42, 203), "bind": (49, 200),
    "listen": (50, 201), "accept": (43, 202), "accept4": (288, 242),
    "shmget": (29, 194), "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180),
}  # fmt: skip
_SYSTEM = {
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39),
    "pivot_root": (155, 41), "chroot": (161, 51), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431),
    "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218), "bpf": (321, 280),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "reboot": (169, 142), "swapon": (167, 224),
    "swapoff": (168, 225), "acct": (163, 89), "personality": (135, 92), "quotactl": (179, 60),
    "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264), "syslog": (103, 116),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "clock_adjtime": (305, 266),
    "adjtimex": (159, 171), "sethostname": (170, 161), "setdomainname": (171, 162),
    "iopl": (172, -1), "ioperm": (173, -1), "quotactl_fd": (443, 443),
}  # fmt: skip
_ATTRIBUTES = {
    "chmod": (90, -1), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "chown": (92, -1), "fchown": (93, 55), "lchown": (94, -1), "fchownat": (260, 54),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "setxattrat": (463, 463),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
    "removexattrat": (466, 466), "file_setattr": (469, 469),
    "mknod": (133, -1), "mknodat": (259, 33),
}  # fmt: skip
"""Who may do what with a file: Landlock knows nothing of it, and a descriptor to read is enough."""
_FILES = {
    "creat": (85, -1), "mkdir": (83, -1), "mkdirat": (258, 34), "rmdir": (84, -1),
    "unlink": (87, -1), "unlinkat": (263, 35), "rename": (82, -1), "renameat": (264, 38),
    "renameat2": (316, 276), "link": (86, -1), "linkat": (265, 37), "symlink": (88, -1),
    "symlinkat": (266, 36), "truncate": (76, 45), "utime": (132, -1),
    "utimes": (235, -1), "utimensat": (280, 88), "futimesat": (261, -1),
    "memfd_create": (319, 279), "memfd_secret": (447, 447),
    "setpriority": (141, 140), "sched_setscheduler": (144, 119), "sched_setparam": (142, 118),
    "sched_setattr": (314, 274), "sched_setaffinity": (203, 122), "ioprio_set": (251, 30),
}  # fmt: skip
_OF_OTHERS = {
    "setpriority": (0, 1), "sched_setscheduler": (0,), "sched_setparam": (0,),
    "sched_setattr": (0,), "ioprio_set": (),
}  # fmt: skip
"""Arguments by which these name another process, a group or a user, unless they are 0. Not
sched_setaffinity(): by it libraries pin their own threads, whose numbers a filter cannot know."""
_MISSING = {"clone3": (435, 435), "openat2": (437, 437)}
"""Their arguments lie in memory, where a filter cannot look; libraries then use the older calls."""
_ARCHITECTURES = {"x86_64": (0, 0xC000003E, 317), "aarch64": (1, 0xC00000B7, 277)}
"""Column above, what the kernel calls it, number of seccomp()."""

_CLONE_THREAD = 0x10000
_OPEN_TO_WRITE = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_SET_ID = stat.S_ISUID | stat.S_ISGID
_IOCTLS = (0x5412, 0x541C, 0x8901, 0x8902)
"""TIOCSTI and TIOCLINUX: what they put into a terminal, its shell runs. What FIOSETOWN and
SIOCSPGRP name is sent signals."""
_SIGNALLING = (8, 10, 15, 1024, 1026)
"""Likewise, of fcntl(): F_SETOWN, F_SETSIG, F_SETOWN_EX and F_NOTIFY; and F_SETLEASE, for which all
others who open the file wait."""
_X32 = 0x40000000

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000
_ARGUMENTS = 16

Instruction = tuple[int, int, int, int]
"""Operation, jump if true, jump if false, value."""


def install(*, files: bool) -> bool:
    """Refuse this process, from now on, sockets, other processes and their priority, modes and
    owners of files, typing into terminals and what only systems need; with `files` also to open a
    file for writing, to change one by its path, to make one of memory, and every ioctl. False: not
    here."""
    known = _ARCHITECTURES.get(platform.machine())
    if known is None:
        return False
    column, architecture, call = known
    program = _program(column, architecture, files=files)
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
    memory = ctypes.create_string_buffer(code, len(code))
    described = struct.pack("@HP", len(program), ctypes.addressof(memory))
    # Mode "filter"; for all threads; without the mitigations that would slow down their loops.
    return int(ctypes.CDLL(None, use_errno=True).syscall(call, 1, 1 | 4, described)) == 0


def _program(column: int, architecture: int, *, files: bool) -> list[Instruction]:
    refused = _PROCESSES | _NETWORK | _SYSTEM | _ATTRIBUTES | (_FILES if files else {})
    own = (0, os.getpid())
    program = [
        (_LOAD, 0, 0, 4),
        (_EQUAL, 1, 0, architecture),
        _refuse(errno.EPERM),
        (_LOAD, 0, 0, 0),
        (_AT_LEAST, 0, 1, _X32),
        _refuse(errno.EPERM),
    ]
    program += _always(refused.values(), column, errno.EPERM)
    program += _always(_MISSING.values(), column, errno.ENOSYS)
    program += _where((62, 129)[column], _one_of(0, own[1:]))  # kill
    program += _where((234, 131)[column], _one_of(0, own[1:]))  # tgkill
    program += _where((302, 261)[column], _one_of(0, own))  # prlimit64
    program += _where((56, 220)[column], _with_bits(0, _CLONE_THREAD))  # clone
    program += _where((72, 25)[column], _none_of(1, _SIGNALLING))  # fcntl
    ioctl, openat = (16, 29)[column], (257, 56)[column]
    if files:
        # What a file object gets that asks whether it is a terminal; Python then does without.
        program += _where(ioctl, [_refuse(errno.EACCES)])
        if column == 0:
            program += _where(2, _without_bits(1, _OPEN_TO_WRITE))  # open
        program += _where(openat, _without_bits(2, _OPEN_TO_WRITE))
    else:
        program += _where(ioctl, _none_of(1, _IOCTLS))
        for name, arguments in _OF_OTHERS.items():
            program += _where(_FILES[name][column], _zero(arguments))
        if column == 0:
            program += _where(2, _without_bits(2, _SET_ID))  # open
            program += _where(85, _without_bits(1, _SET_ID))  # creat
        program += _where(openat, _without_bits(3, _SET_ID))
    return [*program, (_RETURN, 0, 0, _ALLOW)]


def _always(calls: Iterable[tuple[int, int]], column: int, reason: int) -> Iterator[Instruction]:
    for numbers in calls:
        if numbers[column] >= 0:
            yield _EQUAL, 0, 1, numbers[column]
            yield _refuse(reason)


def _where(number: int, block: Sequence[Instruction]) -> list[Instruction]:
    """The block, which returns, for one system call."""
    return [(_EQUAL, 0, len(block), number), *block]


def _one_of(argument: int, values: Sequence[int]) -> list[Instruction]:
    tests = [(_EQUAL, len(values) - position, 0, value) for position, value in enumerate(values)]
    return [_argument(argument), *tests, _refuse(errno.EPERM), (_RETURN, 0, 0, _ALLOW)]


def _none_of(argument: int, values: Sequence[int]) -> list[Instruction]:
    tests = [(_EQUAL, len(values) - position, 0, value) for position, value in enumerate(values)]
    return [_argument(argument), *tests, (_RETURN, 0, 0, _ALLOW), _refuse(errno.EPERM)]


def _zero(arguments: Sequence[int]) -> list[Instruction]:
    """Allow it where these arguments are 0; refuse it where there are none to be."""
    tests = []
    for argument in arguments:
        tests += [_argument(argument), (_EQUAL, 1, 0, 0), _refuse(errno.EPERM)]
    return [*tests, (_RETURN, 0, 0, _ALLOW) if arguments else _refuse(errno.EPERM)]


def _with_bits(argument: int, bits: int) -> list[Instruction]:
    allow = (_RETURN, 0, 0, _ALLOW)
    return [_argument(argument), (_ANY_BIT, 1, 0, bits), _refuse(errno.EPERM), allow]


def _without_bits(argument: int, bits: int) -> list[Instruction]:
    allow = (_RETURN, 0, 0, _ALLOW)
    return [_argument(argument), (_ANY_BIT, 0, 1, bits), _refuse(errno.EACCES), allow]


def _argument(number: int) -> Instruction:
    """Load its lower half, which is all that the kernel looks at in those checked here."""
    return _LOAD, 0, 0, _ARGUMENTS + 8 * number


def _refuse(reason: int) -> Instruction:
    return _RETURN, 0, 0, _REFUSE | reason
