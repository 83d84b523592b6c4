"""Places for messages that arrive."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from app.contracts.errors import InvalidTensor, Overloaded
from app.service.grpc.calls import Arrivals


async def of(*messages: bytes) -> AsyncIterator[bytes]:
    for message in messages:
        yield message


async def silent(begun: asyncio.Event) -> AsyncIterator[bytes]:
    begun.set()
    await asyncio.Event().wait()
    yield b""


def test_a_message_has_its_time_and_a_call_waits_as_long_for_a_place() -> None:
    """Places are given back, whatever becomes of the call."""

    async def run() -> None:
        arrivals = Arrivals(1, seconds=0.05)
        begun = asyncio.Event()
        with pytest.raises(TimeoutError):
            await arrivals.next(silent(begun))
        assert begun.is_set()
        for _ in range(3):
            assert await arrivals.next(of(b"a", b"b")) == b"a"
            with pytest.raises(InvalidTensor):
                await arrivals.next(of())
        async with arrivals._places:
            with pytest.raises(Overloaded, match="1 messages"):
                await arrivals.next(of(b"a"))
        assert await arrivals.next(of(b"a")) == b"a"

    asyncio.run(run())
