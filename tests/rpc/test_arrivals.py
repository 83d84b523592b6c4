"""Who waits for a message's place gets it: a call that sends nothing cannot keep it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from app.contracts.errors import InvalidTensor, Overloaded
from app.rpc.arrivals import Arrivals, Streams

PATIENCE = 20.0


async def of(*messages: bytes) -> AsyncIterator[bytes]:
    for message in messages:
        yield message


async def silent(begun: asyncio.Event) -> AsyncIterator[bytes]:
    begun.set()
    await asyncio.Event().wait()
    yield b""


def test_a_message_and_none() -> None:
    """Places are given back, whatever becomes of the call."""

    async def run() -> None:
        arrivals = Arrivals(1, seconds=PATIENCE)
        for _ in range(3):
            assert await arrivals.next(of(b"a", b"b")) == b"a"
            with pytest.raises(InvalidTensor):
                await arrivals.next(of())

    asyncio.run(run())


def test_a_call_that_sends_nothing_loses_its_place_to_one_that_does() -> None:
    """The oldest, and as many as wait; the other stays."""

    async def run() -> None:
        arrivals = Arrivals(2, seconds=PATIENCE, slow=0.0)
        calls = []
        for _ in range(2):
            begun = asyncio.Event()
            calls.append(asyncio.ensure_future(arrivals.next(silent(begun))))
            await begun.wait()
        assert await asyncio.wait_for(arrivals.next(of(b"a")), PATIENCE) == b"a"
        with pytest.raises(Overloaded, match="2 messages"):
            await calls[0]
        assert not calls[1].done()
        calls[1].cancel()

    asyncio.run(run())


def test_it_loses_it_also_when_it_came_while_others_wait() -> None:
    """Who waits behind many that send nothing waits for each of them once."""

    async def run() -> None:
        arrivals = Arrivals(1, seconds=PATIENCE, slow=0.0)
        calls = [asyncio.ensure_future(arrivals.next(silent(asyncio.Event()))) for _ in range(5)]
        await asyncio.sleep(0)
        assert await asyncio.wait_for(arrivals.next(of(b"a")), PATIENCE) == b"a"
        assert all(
            isinstance(each, Overloaded)
            for each in await asyncio.gather(*calls, return_exceptions=True)
        )

    asyncio.run(run())


def test_where_nobody_waits_a_message_has_its_time() -> None:
    async def run() -> None:
        arrivals = Arrivals(1, seconds=0.01, slow=0.0)
        with pytest.raises(TimeoutError):
            await arrivals.next(silent(asyncio.Event()))
        assert await arrivals.next(of(b"a")) == b"a"

    asyncio.run(run())


def test_a_stream_that_sends_nothing_loses_its_place_to_a_new_one() -> None:
    """The one that has been idle the longest; one at work keeps its place."""

    async def run() -> None:
        streams = Streams(2, idle=0.0)
        waiting = asyncio.Event()
        with streams.place() as busy, streams.place() as idle:
            assert await busy.next(of(b"a")) == b"a"
            held = asyncio.ensure_future(idle.next(silent(waiting)))
            await waiting.wait()
            streams.make_room()
            with pytest.raises(Overloaded, match="sent nothing"):
                await held
            with streams.place() as fresh:
                assert await fresh.next(of(b"b")) == b"b"
                with pytest.raises(Overloaded, match="2 streams are open"):
                    streams.make_room()
            streams.make_room()

    asyncio.run(run())


def test_a_stream_may_be_idle_for_a_while() -> None:
    """Its place is not lost at once, and never where there is room."""

    async def run() -> None:
        streams = Streams(2, idle=PATIENCE)
        with streams.place() as one:
            streams.make_room()
            with streams.place(), pytest.raises(Overloaded, match="2 streams are open"):
                streams.make_room()
            assert await one.next(of(b"a")) == b"a"
            with pytest.raises(StopAsyncIteration):
                await one.next(of())

    asyncio.run(run())
