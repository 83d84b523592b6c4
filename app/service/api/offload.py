"""Large documents are read and written beside the event loop, which answers others meanwhile."""

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
"""JSON up to this size is read in a few milliseconds: not worth a change of threads."""

PART_BYTES = 192 * 1024
"""Divisible by three: the base64 of such parts, one after the other, is that of the whole."""


async def beside_the_loop(services: Services, work: Callable[[], T], *, size: int) -> T:
    """Run `work`, in the operations thread where `size` is above LARGE_BYTES.

    A thread helps as far as `work` is made of several calls: within one, such as the parser's, the
    interpreter does not change threads. Raises Overloaded where it is not its turn within the time
    that a request has by default.
    """
    if size <= LARGE_BYTES:
        return work()
    seconds = services.settings.timeout_default_ms / 1000
    waiting = services.operations.submit(work)
    late = False

    def give_up() -> None:
        nonlocal late
        late = waiting.cancel()  # of no effect once it has begun

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
    """The base64 of `data`, in parts, so that the interpreter can turn to the event loop between
    them."""
    view = memoryview(data)
    return (b64encode(view[at : at + PART_BYTES]) for at in range(0, len(view), PART_BYTES))
