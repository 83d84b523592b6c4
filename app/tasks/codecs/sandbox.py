"""The program of a codec process: set its limits once, then call functions by name."""

import pkgutil
import resource
from collections.abc import Mapping, Sequence
from typing import Any

from app.contracts.errors import WorkerCrashed
from app.contracts.tensors import Tensors
from app.engine.process.environment import lower_limit
from app.engine.process.worker import Handler

MAX_FILE_BYTES = 512 << 20
"""Largest shared-memory file that a codec process may write: a decoded picture, or a reply."""


def open_sandbox(init: Mapping[str, Any]) -> tuple[Mapping[str, Any], Handler]:
    """Set the limits of a codec process, and return the handler of its calls.

    A message of the handler is {"function": "app.…:name", "meta": {…}}.
    """
    del init
    # A core file would hold a client's picture.
    lower_limit(resource.RLIMIT_CORE, 0)
    lower_limit(resource.RLIMIT_FSIZE, MAX_FILE_BYTES)
    import cv2

    import app.tasks.codecs.decode
    import app.tasks.codecs.encode  # noqa: F401  (imported now, so that no request pays for it)

    cv2.setNumThreads(1)
    functions: dict[str, Handler] = {}
    memory_errors = (MemoryError, cv2.error)

    def call(
        message: Mapping[str, Any], arrays: Tensors, descriptors: Sequence[int]
    ) -> tuple[Mapping[str, Any], Tensors]:
        name = str(message["function"])
        function = functions.get(name) or functions.setdefault(name, pkgutil.resolve_name(name))
        try:
            return function(message["meta"], arrays, descriptors)
        except memory_errors as error:
            if isinstance(error, cv2.error) and error.code != cv2.Error.StsNoMem:
                raise
            raise WorkerCrashed("out of memory") from None

    return {}, call
