"""Large documents are read and written beside the event loop, which answers others meanwhile."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from typing import TypeVar

T = TypeVar("T")

LARGE_BYTES = 256 * 1024
"""Of JSON this many are read in a few milliseconds; less is not worth a change of threads."""

PART_BYTES = 192 * 1024
"""Divisible by three: the base64 of such parts, one after the other, is that of the whole."""


async def beside_the_loop(executor: Executor, work: Callable[[], T], *, size: int) -> T:
    """What `work` returns or raises; it runs in a thread of `executor` above LARGE_BYTES of `size`.

    A thread helps as far as `work` is made of several calls: within one, such as the parser's, the
    interpreter does not change threads.
    """
    if size <= LARGE_BYTES:
        return work()
    return await asyncio.get_running_loop().run_in_executor(executor, work)


def base64_parts(data: bytes) -> Iterator[bytes]:
    """The base64 of `data`, in parts, so that the interpreter can turn to the event loop between
    them."""
    view = memoryview(data)
    return (b64encode(view[at : at + PART_BYTES]) for at in range(0, len(view), PART_BYTES))
