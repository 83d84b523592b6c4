"""A body in chunks is held to what it takes on the wire, and not only to what it says."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from uvicorn.server import ServerState

from app.server.incoming import FRAMING_BYTES, UNTIL_SAID
from tests.api.fakes import make_app
from tests.fuzz.http_door import LIMITS
from tests.server.fakes import Line, opened

LIMIT = 256 * 1024
HEAD = b"POST /sentiment HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
TINY = b"1\r\n \r\n"


def refusal(*, before: bytes, repeated: bytes) -> tuple[int, dict[str, Any]]:
    """How many bytes of `repeated` are taken until the connection is ended, and the reply."""
    app = make_app()

    async def sent() -> tuple[int, dict[str, Any]]:
        state, line = ServerState(), Line()
        protocol = opened(app, line, state)
        protocol.data_received(before)
        size = 0
        async with asyncio.timeout(20):
            while not line.ended:
                await asyncio.sleep(0)
                if not line.paused:
                    protocol.data_received(repeated)
                    size += len(repeated)
        if state.tasks:
            await asyncio.wait(state.tasks, timeout=20)
        head, _, body = bytes(line.written).partition(b"\r\n\r\n")
        assert head.count(b"HTTP/1.1") == 1
        line.closing = True
        protocol.connection_lost(None)
        return size, json.loads(body)

    return asyncio.run(sent())


def test_chunks_of_one_byte_are_refused_by_what_they_are_on_the_wire() -> None:
    """Six bytes of the wire for one of the body, and as much work as for a large chunk."""
    size, reply = refusal(before=CHUNKED, repeated=TINY * 1_000)
    most = LIMIT + LIMIT // 8 + FRAMING_BYTES
    assert (reply["status"], reply["code"], reply["limit"]) == (413, "file_too_large", LIMIT)
    assert reply["received"] == f"more than {most}"
    assert most < size < most + 60_000


@pytest.mark.parametrize("before", [b"1;", b"1\r\n \r\n0\r\nA: "], ids=["extension", "trailer"])
def test_what_is_in_no_callback_has_the_limit_of_headers(before: bytes) -> None:
    """A gigabyte came inside one chunk's extension; a trailer was joined anew with each read."""
    size, reply = refusal(before=CHUNKED + before, repeated=b"a" * 1_000)
    assert (reply["status"], reply["limit"]) == (431, LIMITS.header_bytes)
    assert "trailers or the extensions of a chunk" in reply["detail"]
    assert size < LIMITS.header_bytes + 2_000


def test_chunks_of_a_request_that_waits_have_a_limit_too() -> None:
    """Nobody has said yet how large its body may be."""
    state, line = ServerState(), Line()

    async def sent() -> int:
        protocol = opened(make_app(), line, state)
        protocol.data_received(CHUNKED)
        size = 0
        # No turn of the loop, in which the application would begin.
        while not line.ended and size < 2 * UNTIL_SAID:
            protocol.parse(TINY * 1_000)
            size += 6_000
        line.closing = True
        protocol.connection_lost(None)
        return size

    assert UNTIL_SAID < asyncio.run(sent()) < 2 * UNTIL_SAID


def test_many_small_chunks_within_the_limit_are_a_body_like_any_other() -> None:
    """Some clients send a chunk for each number."""
    body = b'{"text": "good"' + b" " * 10_000 + b"}"
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"

    async def answered(data: bytes) -> bytes:
        state, line = ServerState(), Line()
        protocol = opened(make_app(), line, state)
        protocol.data_received(data)
        await asyncio.sleep(0)
        await asyncio.wait(state.tasks, timeout=20)
        line.closing = True
        protocol.connection_lost(None)
        return bytes(line.written.partition(b"\r\n\r\n")[2])

    known = asyncio.run(answered(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body))
    assert known
    told = [json.loads(reply) for reply in (known, asyncio.run(answered(CHUNKED + chunks)))]
    for reply in told:
        reply.pop("request_id", None)
    assert told[0] == told[1]
