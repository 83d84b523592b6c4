"""Large documents are read and written beside the event loop, which answers others meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

T = TypeVar("T")

LARGE_BYTES = 256 * 1024
"""Of JSON this many are read in a few milliseconds; less is not worth a change of threads."""


async def beside_the_loop(executor: Executor, work: Callable[[], T], *, size: int) -> T:
    """What `work` returns or raises; it runs in a thread of `executor` above LARGE_BYTES of `size`.

    A thread helps as far as `work` is made of several calls: within one, such as the parser's, the
    interpreter does not change threads.
    """
    if size <= LARGE_BYTES:
        return work()
    return await asyncio.get_running_loop().run_in_executor(executor, work)
