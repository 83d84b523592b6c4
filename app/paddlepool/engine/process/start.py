"""Starts child processes; some start before they are needed, and import their libraries meanwhile.

This module imports no library: `paddlepool serve` uses it before its own imports.
"""

import contextlib
import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, NamedTuple, cast

from paddlepool.engine.process.environment import child_environment

_NAME = "paddlepool.engine.process.worker"
_ROOT = str(Path(__file__).parents[3])
_PROGRAM = f"import sys; sys.path.append({_ROOT!r}); from {_NAME} import main; main(sys.argv[2:])"
ARGUMENTS = ("-P", "-c", _PROGRAM, _NAME)
"""Arguments that make Python run the worker; the last one is the name shown in process lists. With
`-m`, Python would import from the working directory before any confinement, and codec processes
could read files there."""
SLOTS = 2
"""Maximum calls under way: one that runs, and one that begins when the first ends."""
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


class Process(NamedTuple):
    """A started process, and this process's ends of its channels, which `resources` closes.

    `blocks` are the memory files of requests and replies, two for each slot. The process is killed
    when its channels close, at the latest when this process ends.
    """

    popen: subprocess.Popen[bytes]
    socket: socket.socket
    blocks: tuple[int, ...]
    resources: contextlib.ExitStack


def start(environment: Mapping[str, str], *, prepare: str = "") -> Process:
    """Start a process that runs `paddlepool.engine.process.worker.main`. Raises OSError.

    The process first resolves `prepare`, a "module" or "module:function", and calls the function.
    """
    with contextlib.ExitStack() as resources, contextlib.ExitStack() as inherited:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        resources.enter_context(ours)
        inherited.enter_context(theirs)
        lifeline, parent_end = os.pipe()
        resources.callback(os.close, parent_end)
        inherited.callback(os.close, lifeline)
        blocks: list[int] = []
        for name in ("requests", "replies") * SLOTS:
            blocks.append(memory_file(name))
            resources.callback(os.close, blocks[-1])
        descriptors = (theirs.fileno(), lifeline, *blocks)
        popen = subprocess.Popen(
            [sys.executable, *ARGUMENTS, *map(str, descriptors), *filter(None, [prepare])],
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=child_environment(environment),
        )
        resources.enter_context(cast(IO[bytes], popen.stderr))
        return Process(popen, ours, tuple(blocks), resources.pop_all())


def memory_file(name: str) -> int:
    """Create a memory file that can grow but not shrink; return its descriptor."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
    return descriptor


class Spares:
    """Processes that were started before anyone needed them, by environment. Thread-safe."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Mapping[str, str], Process]] = []

    def start(self, environment: Mapping[str, str], *, prepare: str, count: int) -> None:
        """Start `count` processes with this `prepare`, or fewer if the system lacks resources."""
        with contextlib.suppress(OSError):
            for _ in range(count):
                self._waiting.append((environment, start(environment, prepare=prepare)))

    def take(self, environment: Mapping[str, str]) -> Process:
        """Return a process that was started with this environment, or start one.

        Raises OSError as start() does.
        """
        for entry in tuple(self._waiting):
            if entry[0] == environment and entry[1].popen.poll() is None:
                with contextlib.suppress(ValueError):  # another thread has removed it
                    self._waiting.remove(entry)
                    return entry[1]
        return start(environment)

    def close(self) -> None:
        """End the processes that nobody has taken."""
        while self._waiting:
            process = self._waiting.pop()[1]
            process.popen.kill()
            process.popen.wait()
            process.resources.close()
