"""The way of a request to a replica's server and back, byte for byte."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest

from paddlepool.service.scale.relay import Relay

RequestOutput = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
PATIENCE = 10.0


@contextlib.asynccontextmanager
async def relay_to(respond: RequestOutput) -> AsyncIterator[Relay]:
    """A relay to a server that does to each connection what `answer` says."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await respond(reader, writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    relay = Relay(server.sockets[0].getsockname()[1])
    try:
        yield relay
    finally:
        await relay.close()
        server.close()


def scope(**changed: Any) -> dict[str, Any]:
    return {
        "type": "http",
        "method": "POST",
        "path": "/a b",
        "raw_path": b"/a%20b",
        "query_string": b"x=%2F&y",
        "headers": [(b"host", b"a.example"), (b"content-length", b"4")],
        "client": ("10.1.2.3", 5),
    } | changed


async def whole_body() -> AsyncIterator[bytes]:
    yield b"body"


async def through(
    relay: Relay, request_scope: dict[str, Any], pieces: AsyncIterator[bytes] | None = None
) -> list[dict[str, Any]]:
    """The messages of the answer to a request whose body comes in these pieces."""
    pieces = pieces or whole_body()
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        piece = await anext(pieces, b"")
        return {"type": "http.request", "body": piece, "more_body": bool(piece)}

    async def send(message: Any) -> None:
        sent.append(message)

    async with asyncio.timeout(PATIENCE):
        await relay(request_scope, receive, send)
    return sent


def replying(head: str, body: bytes = b"", *, seen: list[bytes] | None = None) -> RequestOutput:
    """Reads a request with a body of four bytes, or none, and answers with these bytes."""

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        if b"content-length: 4" in request.lower():
            request += await reader.readexactly(4)
        if seen is not None:
            seen.append(request)
        writer.write(head.replace("\n", "\r\n").encode() + b"\r\n\r\n" + body)
        await writer.drain()

    return respond


async def exchanged(respond: RequestOutput, **changed: Any) -> list[dict[str, Any]]:
    """The messages of the answer to one request through a relay to such a server."""
    async with relay_to(respond) as relay:
        return await through(relay, scope(**changed))


async def test_a_request_arrives_as_it_was_sent() -> None:
    """Path and query are not written anew, no header is added but the client's address."""
    seen: list[bytes] = []
    headers = [
        (b"host", b"a.example"),
        (b"content-length", b"4"),
        (b"x-forwarded-for", b"1.2.3.4"),
        (b"connection", b"keep-alive"),
        (b"x-request-id", b"abc"),
    ]
    await exchanged(replying("HTTP/1.1 200 OK\nContent-Length: 0", seen=seen), headers=headers)
    head, _, body = seen[0].partition(b"\r\n\r\n")
    line, *fields = head.split(b"\r\n")
    assert (line, body) == (b"POST /a%20b?x=%2F&y HTTP/1.1", b"body")
    assert sorted(item.lower() for item in fields) == [
        b"content-length: 4",
        b"host: a.example",
        b"x-forwarded-for: 1.2.3.4",
        b"x-forwarded-for: 10.1.2.3",
        b"x-request-id: abc",
    ]


async def test_an_answer_comes_back_as_it_was_given() -> None:
    """Compressed bytes stay compressed; what the server in front says itself is left to it."""
    head = (
        "HTTP/1.1 422 Unprocessable\nContent-Length: 3\nContent-Encoding: gzip\nX-A: b\n"
        "Date: now\nX-Request-ID: abc\nConnection: close"
    )
    start, *bodies = await exchanged(replying(head, b"\x1f\x8b\x00"))
    assert (start["type"], start["status"]) == ("http.response.start", 422)
    assert start["headers"] == [
        (b"content-length", b"3"),
        (b"content-encoding", b"gzip"),
        (b"x-a", b"b"),
    ]
    assert b"".join(item["body"] for item in bodies) == b"\x1f\x8b\x00"
    assert [item.get("more_body", False) for item in bodies] == [True, False]


async def test_a_body_is_passed_on_as_it_comes() -> None:
    """So that the server's own deadlines see how slowly a client sends."""
    arrived: asyncio.Queue[bytes] = asyncio.Queue()

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for _ in range(2):
            await arrived.put(await reader.readexactly(2))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    async def halves() -> AsyncIterator[bytes]:
        yield b"bo"
        assert await arrived.get() == b"bo"  # the first half is there before the second
        yield b"dy"

    async with relay_to(respond) as relay:
        assert (await through(relay, scope(), halves()))[0]["status"] == 200


async def test_a_request_without_a_body_gets_none() -> None:
    seen: list[bytes] = []
    respond = replying("HTTP/1.1 200 OK\nContent-Length: 0", seen=seen)
    await exchanged(respond, method="GET", headers=[(b"host", b"a")])
    assert b"transfer-encoding" not in seen[0].lower()
    assert b"content-length" not in seen[0].lower()


async def test_a_server_that_is_gone_is_a_503_to_be_asked_again() -> None:
    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    start, body = await exchanged(close)
    assert start["status"] == 503
    assert dict(start["headers"])[b"retry-after"] == b"1"
    assert json.loads(body["body"])["status"] == 503


async def test_half_an_answer_is_cut_off_and_not_completed() -> None:
    with pytest.raises(aiohttp.ClientError):
        await exchanged(replying("HTTP/1.1 200 OK\nContent-Length: 9", b"half"))


async def test_a_request_that_is_cancelled_leaves_the_server() -> None:
    arrived, left = asyncio.Event(), asyncio.get_running_loop().create_future()

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(4)
        arrived.set()
        left.set_result(await reader.read())

    async with relay_to(respond) as relay, asyncio.timeout(PATIENCE):
        forwarding = asyncio.create_task(through(relay, scope()))
        await arrived.wait()
        forwarding.cancel()
        assert await left == b""
