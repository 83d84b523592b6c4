"""Limits on concurrent messages, streams and unread replies; gRPC codes and metadata of errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import suppress
from typing import Any

import grpc

from app.contracts.errors import InvalidTensor, Overloaded
from app.service.api.errors import fault_of, http_fault
from app.service.api.middleware.limits import RETRY_SECONDS, Budget
from app.service.api.problems import Fault

SMALL_BYTES = 64 * 1024
"""Replies up to this size, less than a connection's own buffers, are not counted. Health calls
therefore succeed even if unread replies have reached their limit."""


TOO_LATE = "The client did not send its message in time."


class Arrivals:
    """Limits how many messages arrive at a time. For one event loop.

    gRPC assembles a whole message before the handler sees it, so only as many may arrive as fit
    into memory.
    """

    def __init__(self, places: int, *, seconds: float) -> None:
        """`seconds` is the time for a call to get a place and receive its message."""
        self._places = asyncio.Semaphore(places)
        self._limit = places
        self._seconds = seconds

    async def next(self, messages: AsyncIterator[bytes]) -> bytes:
        """Return the call's message.

        Raises Overloaded if no place became free in time, TimeoutError if the message did not
        arrive in time, and InvalidTensor if the call ends without a message.
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
    """Yield a stream's messages.

    Ends the call if `streams` has no place, or if a message does not arrive within `seconds`.
    """
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
    """End a call with the fault's code, detail and metadata."""
    await context.abort(CODES[fault.status], fault.detail, tuple(metadata_of(fault).items()))


def hold_reply(unread: Budget, size: int, context: Any) -> None:
    """Count a reply in `unread` until its call ends. Raises Overloaded.

    gRPC does not report how much of a reply its client has read.
    """
    if size > SMALL_BYTES:
        unread.take(size)
        context.add_done_callback(lambda _: unread.give_back(size))


CODES: Mapping[int, grpc.StatusCode] = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    409: grpc.StatusCode.FAILED_PRECONDITION,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,  # like gRPC's own message limit
    415: grpc.StatusCode.INVALID_ARGUMENT,
    422: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    500: grpc.StatusCode.INTERNAL,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
"""gRPC codes by the HTTP status of the same error."""

PUSHBACK = "grpc-retry-pushback-ms"
"""Metadata key: milliseconds after which a client with a retry policy retries."""


def metadata_of(fault: Fault) -> dict[str, str]:
    """Return an error's metadata: its stable code, and when to retry."""
    found = {"error-code": fault.code}
    if (seconds := fault.headers.get("Retry-After")) is not None:
        found |= {"retry-after": seconds, PUSHBACK: str(1000 * int(seconds))}
    return found
