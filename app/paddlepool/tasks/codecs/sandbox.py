"""The program of a codec process: set its limits once, then call functions by name."""

import functools
import pkgutil
import resource
from collections.abc import Mapping, Sequence
from typing import Any

import cv2

import paddlepool.tasks.codecs.decode
import paddlepool.tasks.codecs.encode  # noqa: F401  (imported now, so that no request pays for it)
from paddlepool.contracts.errors import WorkerCrashed
from paddlepool.contracts.tensors import Tensors
from paddlepool.engine.process.environment import lower_limit
from paddlepool.engine.process.worker import Handler

MAX_FILE_BYTES = 512 << 20
"""Largest shared-memory file that a codec process may write: a decoded picture, or a reply."""

_function = functools.cache(pkgutil.resolve_name)


def open_sandbox(_: Mapping[str, Any]) -> tuple[Mapping[str, Any], Handler]:
    """Set the limits of this codec process; return an empty mapping and the handler of its calls.

    A message to the handler is {"function": "module:name", "meta": {…}}. The handler returns what
    `function(meta, arrays, descriptors)` returns, and raises its errors. If memory runs out, it
    raises WorkerCrashed.
    """
    lower_limit(resource.RLIMIT_CORE, 0)  # a core file would hold a client's picture
    lower_limit(resource.RLIMIT_FSIZE, MAX_FILE_BYTES)
    cv2.setNumThreads(1)
    return {}, _call


def _call(
    message: Mapping[str, Any], arrays: Tensors, descriptors: Sequence[int]
) -> tuple[Mapping[str, Any], Tensors]:
    try:
        return _function(str(message["function"]))(message["meta"], arrays, descriptors)
    except (MemoryError, cv2.error) as error:
        if isinstance(error, cv2.error) and error.code != cv2.Error.StsNoMem:
            raise
        raise WorkerCrashed("out of memory") from None
