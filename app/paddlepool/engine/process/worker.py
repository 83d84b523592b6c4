"""The child's side of `child.py`: imports a target, handles calls and ends with the parent."""

import contextlib
import errno
import fcntl
import json
import os
import pkgutil
import resource
import select
import signal
import socket
import termios
import time
import traceback
from array import array
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from paddlepool.contracts.errors import PaddlepoolError
from paddlepool.contracts.sentences import sentence
from paddlepool.contracts.tensors import Tensors
from paddlepool.engine.process.confinement import Confinement, confine_calls, confine_files
from paddlepool.engine.process.environment import lower_limit
from paddlepool.engine.process.shared_arrays import SharedArrays
from paddlepool.engine.process.start import SLOTS

HEADER_BYTES = 128 << 10
MAX_DESCRIPTORS = 8
ANCILLARY_BYTES = socket.CMSG_LEN(MAX_DESCRIPTORS * array("i").itemsize)

Handler = Callable[[Mapping[str, Any], Tensors, Sequence[int]], tuple[Mapping[str, Any], Tensors]]


def main(arguments: Sequence[str]) -> None:
    """Handle calls until the parent closes its end of the socket.

    `arguments` are numbers of inherited descriptors: the socket, the read end of a pipe that the
    parent keeps open, and for each slot the memory of its requests and of its replies. A further
    one names what to prepare, as start() describes; errors of that are left to the first call,
    which opens the target. The kernel kills this process when the parent ends.
    """
    wire_fd, lifeline, *blocks = map(int, arguments[: 2 + 2 * SLOTS])
    end_with_parent(os.getpid(), lifeline)
    if select.select([lifeline], [], [], 0)[0]:  # the parent's end is closed already
        os._exit(0)
    _ignore_signals()
    _leave_terminal()
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("500")  # the OOM killer picks a child, not the API process
    for name in arguments[2 + 2 * SLOTS :]:
        with contextlib.suppress(Exception):
            if callable(prepare := pkgutil.resolve_name(name)):
                prepare()
    wire = socket.socket(fileno=wire_fd)
    slots = [(SharedArrays(blocks[2 * n]), SharedArrays(blocks[2 * n + 1])) for n in range(SLOTS)]
    handler: Handler | None = None
    header = bytearray(HEADER_BYTES)
    while True:
        try:
            size, descriptors = receive(wire, header)
        except ConnectionResetError:
            return
        if not size:
            return
        message = json.loads(header[:size])
        requests, replies = slots[message["slot"]]
        began = time.perf_counter()
        try:
            if handler is None:
                meta, handler = _open(message["meta"])
                _ignore_signals()  # again: Paddle resets SIGTERM
                seconds = time.perf_counter() - began
                reply: dict[str, Any] = {"meta": meta, "arrays": [], "seconds": seconds}
            else:
                arrays = requests.read(message["arrays"])
                meta, results = handler(message["meta"], arrays, descriptors)
                seconds = time.perf_counter() - began
                reply = {"meta": meta, "arrays": replies.write(results), "seconds": seconds}
                del arrays, results
        except PaddlepoolError as error:
            values = {"limit": error.limit, "received": error.received}
            kind = type(error).__name__
            reply = {"error": {"kind": kind, "message": error.message, **values}}
        except Exception as failure:
            number = _resource_errno(failure) if handler is None else None
            reply = {"error": {"errno": number} if number else _describe(failure)}
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        try:
            wire.send(json.dumps(reply).encode())
        except (BrokenPipeError, ConnectionResetError):
            return  # the parent has gone


def receive(wire: socket.socket, header: bytearray) -> tuple[int, Sequence[int]]:
    """Receive a message into `header`; return its size and the descriptors that came with it.

    `socket.recv_fds` would allocate memory for the longest message each time.
    """
    size, ancillary, _, _ = wire.recvmsg_into([header], ANCILLARY_BYTES)
    descriptors = array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    return size, descriptors.tolist()


def _open(opening: Mapping[str, Any]) -> tuple[Mapping[str, Any], Handler]:
    """Import the target, call it and apply the limits; return the reply's values and the handler.

    Files are confined first, before a library starts a thread. System calls are confined before
    the target is called, or afterwards if it starts programs. The limit of the address space is set
    after the target has returned, because imports need more than calls.
    """
    confinement = Confinement(kind) if (kind := opening["confinement"]) else None
    reading, writing = map(Path, opening["reading"]), map(Path, opening["writing"])
    held = confine_files(confinement, reading, writing) if confinement else []
    open_target = pkgutil.resolve_name(opening["target"])
    if confinement and not opening["starts_programs"]:
        held += confine_calls(confinement)
    ready, handler = open_target(opening["init"])
    if space := opening["address_space"]:
        lower_limit(resource.RLIMIT_AS, space)
    if confinement and opening["starts_programs"]:
        held += confine_calls(confinement)
    return {"ready": ready, "held": held}, handler


def _resource_errno(failure: Exception) -> int | None:
    """Return the error number if the system lacked resources and a retry may succeed, else None."""
    if isinstance(failure, MemoryError):
        return errno.ENOMEM
    transient = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
    return failure.errno if isinstance(failure, OSError) and failure.errno in transient else None


def _describe(failure: Exception) -> Mapping[str, str]:
    """Return the parts of a BackendError; only `library_text` may quote a client's input."""
    frames = traceback.extract_tb(failure.__traceback__)[-6:]
    where = ", ".join(f"{frame.name}:{frame.lineno}" for frame in frames)
    name = type(failure).__name__
    text = sentence(str(failure)) or name
    return {"kind": "BackendError", "message": f"{name} in {where}", "library_text": text}


def _ignore_signals() -> None:
    """Ignore what terminals, `timeout` and service managers send to the whole process group.

    Only the parent may end a child: the parent lets calls in progress end first, and would treat a
    stopped child as dead.
    """
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGTSTP):
        signal.signal(number, signal.SIG_IGN)


def _leave_terminal() -> None:
    """Give up the controlling terminal, into which this process could inject input.

    A new session would do that, too. But Linux may divide processor time between sessions
    (autogroup), and niceness would then count only within a session.
    """
    with contextlib.suppress(OSError):  # no terminal, or no access to it
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
        fcntl.ioctl(terminal, termios.TIOCNOTTY)
        os.close(terminal)


def end_with_parent(process_id: int, lifeline: int) -> None:
    """Make the kernel kill a process when the parent's end of the pipe closes.

    `lifeline` is the read end, which the process must have open. This works during a native call
    and while the process is stopped. The parent death signal cannot be used: it is sent when the
    *thread* that started the process ends.
    """
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, process_id)
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, os.O_ASYNC)
