"""How many messages and streams there are at a time, and how much of their replies is unread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from typing import Any

from app.contracts.errors import InvalidTensor, Overloaded
from app.service.api.errors import fault_of, http_fault
from app.service.api.middleware.limits import RETRY_SECONDS, Budget
from app.service.api.problems import Fault
from app.service.grpc.status import CODES, metadata_of

SMALL_BYTES = 64 * 1024
"""Less than a connection's own buffers: such replies are not counted, so that health is answered
however large the replies are that clients leave unread."""


TOO_LATE = "The client did not send its message in time."


class Arrivals:
    """For one event loop. gRPC assembles a message before it is seen: only so many arrive at a time
    as fit into memory."""

    def __init__(self, places: int, *, seconds: float) -> None:
        """`seconds` are what a message may take, and what a call waits for a place."""
        self._places = asyncio.Semaphore(places)
        self._limit = places
        self._seconds = seconds

    async def next(self, messages: AsyncIterator[bytes]) -> bytes:
        """The call's message.

        Raises TimeoutError, Overloaded where no place became free, and InvalidTensor where the call
        ends without a message.
        """
        has_place = False
        try:
            async with asyncio.timeout(self._seconds), self._places:
                has_place = True
                return await anext(messages)
        except StopAsyncIteration:
            raise InvalidTensor("the call ended without a message") from None
        except TimeoutError:
            if has_place:
                raise
            raise Overloaded(
                f"{self._limit} messages are arriving, as many as may",
                retry_after=RETRY_SECONDS,
                limit=self._limit,
            ) from None


async def received(
    messages: AsyncIterator[bytes], context: Any, streams: Budget, *, seconds: float
) -> AsyncGenerator[bytes, None]:
    """A stream's messages. Ends the call where there is no place for it, and where a message does
    not come within `seconds`."""
    try:
        with streams.held(), suppress(StopAsyncIteration):
            while True:
                async with asyncio.timeout(seconds):
                    message = await anext(messages)
                yield message
    except Overloaded as error:
        await end_call(context, fault_of(error))
    except TimeoutError:
        await end_call(context, http_fault(408, TOO_LATE))


async def end_call(context: Any, fault: Fault) -> None:
    """With the error's code, words and metadata."""
    await context.abort(CODES[fault.status], fault.detail, tuple(metadata_of(fault).items()))


def hold_reply(unread: Budget, size: int, context: Any) -> None:
    """Count a reply until its call is over: how much its client has taken gRPC does not say.

    Raises Overloaded.
    """
    if size > SMALL_BYTES:
        unread.take(size)
        context.add_done_callback(lambda _: unread.give_back(size))
