"""Read and write large documents in a thread, so the event loop can serve other requests."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Callable, Iterator
from typing import TypeVar

from app.contracts.errors import Overloaded
from app.service.api.services import Services

T = TypeVar("T")
RETRY_SECONDS = 1.0

LARGE_BYTES = 256 * 1024
"""JSON up to this size is read in a few milliseconds, too few to justify a thread switch."""

PART_BYTES = 192 * 1024
"""Bytes of one part. Divisible by three, so the parts' base64 joins to the base64 of the whole."""


async def beside_the_loop(services: Services, work: Callable[[], T], *, size: int) -> T:
    """Run `work`, in the operations thread if `size` is above LARGE_BYTES.

    A thread helps only if `work` consists of several calls: the interpreter does not switch threads
    within one call into C, such as a parser's. Raises Overloaded if `work` does not start within
    `timeout_default_ms`.
    """
    if size <= LARGE_BYTES:
        return work()
    seconds = services.settings.timeout_default_ms / 1000
    waiting = services.operations.submit(work)
    late = False

    def give_up() -> None:
        nonlocal late
        late = waiting.cancel()  # no effect if it is already running

    timer = asyncio.get_running_loop().call_later(seconds, give_up)
    try:
        return await asyncio.wrap_future(waiting)
    except asyncio.CancelledError:
        if not late:
            raise
        raise Overloaded(
            f"so many large documents are read and written that this one waited {seconds:g} s",
            retry_after=RETRY_SECONDS,
            limit=seconds,
        ) from None
    finally:
        timer.cancel()


def base64_parts(data: bytes) -> Iterator[bytes]:
    """Yield the base64 of `data` in parts; the interpreter can switch threads between them."""
    view = memoryview(data)
    return (b64encode(view[at : at + PART_BYTES]) for at in range(0, len(view), PART_BYTES))
