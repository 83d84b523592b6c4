"""What a client may still send after the reply that ends its connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import uvicorn
from uvicorn.server import ServerState

from app.server.connection_limits import LimitedProtocol, ProtocolLimits, protocol_class
from app.server.ending import Lingering
from tests.api.fakes import make_app, make_settings
from tests.fuzz.http_door import Transport

LIMITS = ProtocolLimits(
    header_seconds=30, header_bytes=4096, receive_seconds=30, send_stall_seconds=30, connections=9
)
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


class Line(Transport):
    """Knows also whether it is read from."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = self.paused = False

    def write_eof(self) -> None:
        self.ended = True

    def pause_reading(self) -> None:
        self.paused = True


class Timers:
    """Stands for a loop: runs nothing, and keeps what was to be called after how many seconds."""

    def __init__(self) -> None:
        self.set: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, seconds: float, call: Callable[[], None]) -> None:
        self.set.append((seconds, call))


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
        config = uvicorn.Config(app, http=protocol_class(LIMITS), ws="none", log_config=None)
        config.load()
        state, line = ServerState(), Line()
        protocol = protocol_class(LIMITS)(config=config, server_state=state, app_state={})
        protocol.connection_made(line)
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
