"""What a client may still send after the reply that ends its connection."""

from __future__ import annotations

import asyncio

import pytest
from uvicorn.server import ServerState

from app.server.connection_limits import LimitedProtocol
from app.server.crowded import TOLD_CONNECTIONS
from app.server.ending import Lingering
from tests.api.fakes import make_app, make_settings
from tests.fuzz.http_door import LIMITS
from tests.server.fakes import Line, Timers, opened

HOST = b"Host: localhost\r\n"
KEY = b"X-Api-Key: k\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
LONG = b"Content-Length: 99999999\r\n\r\n"
REFUSED = {
    401: b"POST /sentiment HTTP/1.1\r\n" + HOST + CHUNKED,
    404: b"POST /nothing HTTP/1.1\r\n" + KEY + HOST + CHUNKED,
    413: b"POST /sentiment HTTP/1.1\r\n" + KEY + HOST + LONG,
    415: b"POST /sentiment HTTP/1.1\r\nContent-Encoding: gzip\r\n" + KEY + HOST + CHUNKED,
}


def test_an_ended_connection_is_closed_after_a_second_and_read_for_a_mebibyte() -> None:
    """Not a byte more, and once however often it is ended."""
    line, timers = Line(), Timers()
    lingering = Lingering(line, timers)  # type: ignore[arg-type]  # what it uses of a loop
    lingering.begin()
    lingering.begin()
    [(seconds, close)] = timers.set
    assert (seconds, line.ended, line.closing) == (1.0, True, False)
    lingering.received(2**20)
    assert not line.paused
    lingering.received(1)
    assert line.paused
    close()
    assert line.closing


@pytest.mark.parametrize("status", REFUSED)
def test_nothing_is_parsed_behind_an_early_refusal(status: int) -> None:
    """Chunks of one byte cost the parser as much as large ones, and kept the server from others."""
    app = make_app(settings=make_settings(api_keys=("k",)))

    async def refused() -> tuple[LimitedProtocol, Line]:
        state, line = ServerState(), Line()
        protocol = opened(app, line, state)
        protocol.data_received(REFUSED[status])
        await asyncio.wait(state.tasks, timeout=20)
        assert line.written.startswith(b"HTTP/1.1 %d " % status)
        assert line.ended
        del protocol.parser
        protocol.data_received(b"1\r\nx\r\n" * 200_000)
        assert line.paused
        assert not line.closing
        await asyncio.sleep(1.1)
        assert line.closing
        protocol.connection_lost(None)
        return protocol, line

    asyncio.run(refused())


def test_a_connection_far_beyond_the_limit_is_closed_before_it_asks() -> None:
    """Each takes a descriptor, and the processes of the server need some."""

    async def closed() -> list[bool]:
        state, lines = ServerState(), [Line() for _ in range(LIMITS.connections + 20)]
        protocols = [opened(make_app(), line, state) for line in lines]
        before = [line.closing for line in lines]
        for protocol in protocols:
            protocol.connection_lost(None)
        return before

    kept = LIMITS.connections + TOLD_CONNECTIONS
    assert asyncio.run(closed()) == [False] * kept + [True] * (LIMITS.connections + 20 - kept)
