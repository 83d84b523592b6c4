"""Functions for a codec process; most misbehave on purpose. Loaded there by their names."""

import contextlib
import ctypes
import fcntl
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from paddlepool.contracts.errors import InvalidParameter
from paddlepool.contracts.tensors import Tensors
from paddlepool.tasks.codecs.decode import decode
from paddlepool.tasks.codecs.limits import PictureLimits

Result = tuple[Mapping[str, Any], Tensors]
warm_ups: list[int] = []


def echo(meta: Mapping[str, Any], arrays: Tensors, descriptors: Sequence[int]) -> Result:
    for descriptor in descriptors:
        os.write(descriptor, b"written by the child")
    return {"meta": dict(meta), "pid": os.getpid()}, dict(arrays)


def crash(meta: Mapping[str, Any], arrays: Tensors, descriptors: Sequence[int]) -> Result:
    ctypes.string_at(0)
    raise AssertionError("unreachable")


def hang(meta: Mapping[str, Any], arrays: Tensors, descriptors: Sequence[int]) -> Result:
    while True:
        pass


def block(meta: Mapping[str, Any], arrays: Tensors, descriptors: Sequence[int]) -> Result:
    """Wait for what never comes, without needing a processor."""
    while True:
        time.sleep(60)


def spin(meta: Mapping[str, Any], arrays: Tensors, descriptors: Sequence[int]) -> Result:
    """Work for so many seconds."""
    end = time.monotonic() + meta["seconds"]
    while time.monotonic() < end:
        pass
    return {}, {}


def hold(meta: Mapping[str, Any], arrays: Tensors, descriptors: Sequence[int]) -> Result:
    """Say in the first file that it began, then wait until there is something in the second."""
    os.write(descriptors[0], b"began")
    while not os.fstat(descriptors[1]).st_size:
        time.sleep(0.005)
    return {"pid": os.getpid()}, {}


def end(meta: Mapping[str, Any], arrays: Tensors, descriptors: Sequence[int]) -> Result:
    """As if somebody had sent it a signal."""
    os.kill(os.getpid(), meta["signal"])
    raise AssertionError("unreachable")


def explode(meta: Mapping[str, Any], arrays: Tensors, descriptors: Sequence[int]) -> Result:
    return {}, {"huge": np.ones(4 << 30, np.uint8)}


def refuse(meta: Mapping[str, Any], arrays: Tensors, descriptors: Sequence[int]) -> Result:
    raise InvalidParameter("refused on purpose", limit=3, received=4)


def warm_up(meta: Mapping[str, Any], arrays: Tensors, descriptors: Sequence[int]) -> Result:
    warm_ups.append(1)
    return {}, {}


def warmed(meta: Mapping[str, Any], arrays: Tensors, descriptors: Sequence[int]) -> Result:
    """How often this process ran warm_up()."""
    return {"times": len(warm_ups)}, {}


def limits(meta: Mapping[str, Any], arrays: Tensors, descriptors: Sequence[int]) -> Result:
    import resource

    names = ("RLIMIT_AS", "RLIMIT_CORE", "RLIMIT_FSIZE")
    return {name: resource.getrlimit(getattr(resource, name))[1] for name in names}, {}


def spoil(meta: Mapping[str, Any], arrays: Tensors, descriptors: Sequence[int]) -> Result:
    """Try everything that would take the picture's memory from its readers, or make more of it."""
    [memory] = descriptors
    os.pwrite(memory, b"pixels", 0)
    end = os.fstat(memory).st_size
    attempts: dict[str, Callable[[], object]] = {
        "shrink": lambda: os.ftruncate(memory, 0),
        "grow": lambda: os.ftruncate(memory, end + 1),
        "write behind the end": lambda: os.pwrite(memory, b"more", end),
        "seal": lambda: fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE),
    }
    done = []
    for name, attempt in attempts.items():
        with contextlib.suppress(OSError):
            attempt()
            done.append(name)
    return {"done": done}, {}


def keep(meta: Mapping[str, Any], arrays: Tensors, descriptors: Sequence[int]) -> Result:
    """Keep the picture's memory, and answer or refuse as if nothing were."""
    for _ in range(meta["copies"]):
        os.dup(descriptors[0])
    if meta["refuse"]:
        raise InvalidParameter("refused on purpose")
    return {}, {}


def decoded(meta: Mapping[str, Any], arrays: Tensors, descriptors: Sequence[int]) -> Result:
    """A picture's pixels, by the decoder of the service."""
    limits = PictureLimits(**meta.get("limits", {}))
    return {}, {"pixels": decode(arrays["body"].tobytes(), limits)}
