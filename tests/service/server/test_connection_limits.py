"""One connection: requests behind each other, what ends it, and what it still reads then."""

import asyncio
import gc
import itertools
import re
from collections.abc import Callable, Sequence
from unittest.mock import Mock

import pytest
import uvicorn
from prometheus_client import generate_latest
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.server import ServerState

from paddlepool.service.api.middleware.exchange import Exchange
from paddlepool.service.server.connection_limits import (
    PIPELINED,
    REFUSED_CONNECTIONS,
    LimitedProtocol,
    protocol_class,
)
from paddlepool.service.server.sending import (
    JOINED_BYTES,
    LINGER_BYTES,
    LINGER_SECONDS,
    Lingering,
    WholeReply,
)
from tests.engine.fakes import no_collections
from tests.fuzz.http_entry import LIMITS, REPLY_BYTES, Transport
from tests.service.api.fakes import make_app, make_settings

HOST = b"Host: localhost\r\n"
KEYED = b"X-Api-Key: k\r\n" + HOST
GET = b"GET /%d HTTP/1.1\r\n" + HOST + b"\r\n"
POST = b"POST /body HTTP/1.1\r\n" + HOST
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"


async def describe_request(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the host, the path and the size of the body."""
    size, more = 0, True
    while more:
        message = await receive()
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
    [host] = [value for name, value in scope["headers"] if name == b"host"] or [b""]
    body = b"<%b %b %d>" % (host, scope["path"].encode(), size)
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    await send({"type": "http.response.body", "body": body})


def opened(
    app: ASGIApp,
    line: Transport,
    state: ServerState,
    *,
    keep_alive_seconds: int = 5,
    refused: Callable[[int], None] = lambda _: None,
) -> LimitedProtocol:
    """A connection that has just been made."""
    kind = protocol_class(LIMITS, reply_bytes=REPLY_BYTES, refused=refused)
    config = uvicorn.Config(
        app, http=kind, ws="none", log_config=None, timeout_keep_alive=keep_alive_seconds
    )
    config.load()
    protocol = kind(config=config, server_state=state, app_state={})
    protocol.connection_made(line)
    return protocol


def completed(
    *parts: bytes,
    app: ASGIApp = describe_request,
    refused: Callable[[int], None] = lambda _: None,
) -> Transport:
    """The connection on which these bytes came, once nothing more is written."""

    async def sent() -> Transport:
        state, line = ServerState(), Transport()
        protocol = opened(app, line, state, refused=refused)
        for part in parts:
            protocol.data_received(part)
            await asyncio.sleep(0)
        async with asyncio.timeout(20):
            while tasks := set(state.tasks):
                await asyncio.wait(tasks)
        protocol.connection_lost(None)
        return line

    return asyncio.run(sent())


def replies(*parts: bytes, app: ASGIApp = describe_request) -> bytes:
    return completed(*parts, app=app).written


def answers(received: bytes, wanted: Sequence[bytes]) -> None:
    """The replies have these bodies, in this order, and there are no others."""
    places = [received.index(body) for body in wanted]
    assert places == sorted(places)
    assert received.count(b"HTTP/1.1 ") == len(wanted)


def test_pipelined_requests_are_answered_in_order() -> None:
    """Bodies of both framings, and requests behind them, in one read and cut anywhere."""
    size = 100_000
    known = POST + b"Content-Length: %d\r\n\r\n" % size + bytes(size)
    chunks = b"%x\r\n%b\r\n" % (1_000, bytes(1_000)) * 90 + b"0\r\n\r\n"
    stream = (known + POST + CHUNKED + chunks + GET % 7) * 3 + GET % 9
    bodies = [b"/body 100000>", b"/body 90000>", b"/7 0>"]
    cuts = [0, 1, 50, 3_000, 90_000, 170_001, 250_000, len(stream)]
    pieces = [stream[start:stop] for start, stop in itertools.pairwise(cuts)]
    for parts in ([stream], pieces):
        received = replies(*parts)
        assert [received.count(body) for body in bodies] == [3, 3, 3]
        assert received.endswith(b"/9 0>")


def exchanges() -> int:
    return sum(isinstance(instance, Exchange) for instance in gc.get_objects())


def test_an_answered_request_is_not_left_to_the_garbage_collector() -> None:
    """Of several on one connection, only the newest is still there: the connection refers to it."""
    with no_collections():
        before = exchanges()
        assert completed(*[GET % 1] * 5, app=make_app()).written.count(b"HTTP/1.1 404") == 5
        assert exchanges() <= before + 1


@pytest.mark.parametrize(
    ("target", "seen"),
    [
        (b"http://a.example:80/x?q=1", b"<a.example:80 /x 0>"),
        (b"HTTP://[::1]", b"<[::1] / 0>"),
        (b"https://a.example?q=http://b", b"<a.example / 0>"),
        (b"http://a.example/x?q=a@b", b"<a.example /x 0>"),
        (b"/x?q=http://b", b"<localhost /x 0>"),
    ],
)
def test_the_host_of_an_absolute_target_wins_over_the_header(target: bytes, seen: bytes) -> None:
    """As RFC 9112, 3.2.2 has it; else a proxy and this server would see two hosts."""
    assert replies(b"GET " + target + b" HTTP/1.1\r\n" + HOST + b"\r\n").endswith(seen)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET / HTTP/1.0\r\n", 200),
        (b"GET / HTTP/1.2\r\n" + HOST, 505),
        (b"GET / HTTP/2.0\r\n" + HOST, 505),
        (b"GET / HTTP/0.9\r\n" + HOST, 505),
        (b"GET / HTTP/1.1\r\nHost:\r\n", 400),
        (b"GET / HTTP/1.0\r\nHost: \r\n", 400),
        (b"GET http://a.example/ HTTP/1.1\r\n", 400),
        (b"GET ftp://a.example/ HTTP/1.1\r\n" + HOST, 400),
        (b"GET http://user@a.example/ HTTP/1.1\r\n" + HOST, 400),
        (b"GET http:///x HTTP/1.1\r\n" + HOST, 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00", 400),  # TLS
        (b"GET /\xff HTTP/1.1\r\n" + HOST, 400),
        # A proxy that knows no chunks would find another end of the body (RFC 9112, 6.1).
        (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n" + HOST + b"\r\n0\r\n", 400),
    ],
)
def test_other_versions_hosts_and_schemes_are_refused(head: bytes, status: int) -> None:
    reply = replies(head + b"\r\n", GET % 2)
    assert reply.startswith(b"HTTP/1.1 %d " % status)
    assert (b"application/problem+json" in reply) is (status != 200)


@pytest.mark.parametrize("sent", ["in one piece", "later"])
@pytest.mark.parametrize("offered", [b"", b"X-Request-ID: late-body.7\r\n"], ids=["", "own id"])
def test_a_broken_body_is_one_request_with_one_status(
    sent: str, offered: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """In the reply, the log and the metrics, although the client was not told by the route."""
    app = make_app()
    metrics = app.state.paddlepool.metrics
    head = b"POST /v2/models/a/infer HTTP/1.1\r\n" + HOST + offered + CHUNKED
    pieces = [head + b"no size\r\n"] if sent == "in one piece" else [head, b"no size\r\n"]
    with caplog.at_level("INFO", "paddlepool"):
        reply = completed(*pieces, app=app, refused=metrics.connection_refused).written
    assert reply.startswith(b"HTTP/1.1 400")
    [given] = re.findall(rb"x-request-id: (\S+)", reply)
    lines = [line for line in caplog.records if line.name.startswith("paddlepool")]
    assert {line.__dict__["request_id"] for line in lines} == {given.decode()}
    assert {line.__dict__["status"] for line in lines} == {400}
    assert sorted(line.getMessage() for line in lines) == ["connection refused", "request"]
    assert not offered or given == b"late-body.7"
    text = generate_latest(metrics.registry).decode()
    [counted] = re.findall(r"_request_duration_seconds_count{(.*?)} 1.0", text)
    assert 'status="400"' in counted
    assert 'paddlepool_refused_connections_total{status="400"} 1.0' in text


def test_no_more_requests_wait_than_may() -> None:
    received = replies(b"".join(GET % number for number in range(100)))
    answers(received, [*(b"/%d 0>" % number for number in range(PIPELINED + 1)), b"overloaded"])
    assert b"HTTP/1.1 503 " in received
    assert b"Retry-After: 1\r\n" in received
    assert b"X-Replica: replica1\r\n" in received


@pytest.mark.parametrize("before", [b"1;", b"1\r\n \r\n0\r\nA: "], ids=["extension", "trailer"])
def test_what_reaches_no_callback_has_the_limit_of_headers(before: bytes) -> None:
    """A chunk's extension has no end; a trailer is joined anew with each read."""
    parts = [b"a" * 1_000] * (LIMITS.header_max_bytes // 1_000 + 2)
    received = replies(POST + CHUNKED + before, *parts)
    assert received.startswith(b"HTTP/1.1 431 ")
    assert b"trailers or the extensions of a chunk" in received


@pytest.mark.parametrize(
    "broken",
    [b"NONSENSE\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", POST + CHUNKED + b"zz\r\n"],
    ids=["no-http", "no-host", "bad-chunk"],
)
def test_what_is_broken_behind_another_request_is_refused_in_its_turn(broken: bytes) -> None:
    answers(replies(GET % 1 + broken, GET % 2), [b"/1 0>", b"invalid_request"])


EXPECTING = b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n"


def test_a_connection_is_kept_if_the_expected_body_came() -> None:
    received = replies(POST + EXPECTING, b"12", GET % 3)
    assert received.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 ")
    assert received.index(b"/body 2>") < received.index(b"/3 0>")
    assert b"close" not in received


REFUSED = (
    (401, b"POST /sentiment HTTP/1.1\r\n" + HOST + CHUNKED),
    (404, b"POST /nothing HTTP/1.1\r\n" + KEYED + CHUNKED),
    (404, b"POST /nothing HTTP/1.1\r\n" + KEYED + EXPECTING),
    (413, b"POST /sentiment HTTP/1.1\r\n" + KEYED + b"Content-Length: 9999999\r\n\r\n"),
)


@pytest.mark.parametrize(("status", "refused"), REFUSED)
async def test_nothing_is_parsed_behind_an_early_refusal(status: int, refused: bytes) -> None:
    state, line = ServerState(), Transport()
    protocol = opened(make_app(settings=make_settings(api_keys=("k",))), line, state)
    protocol.data_received(refused)
    await asyncio.wait(state.tasks, timeout=20)
    assert line.written.startswith(b"HTTP/1.1 %d " % status)
    assert line.ended
    del protocol.parser
    protocol.data_received(b"1\r\nx\r\n" * 200_000)
    assert (line.paused, line.closing) == (True, False)
    protocol.connection_lost(None)


async def rejecting(scope: Scope, receive: Receive, send: Send) -> None:
    """Replies before it reads the body."""
    del scope
    await send({"type": "http.response.start", "status": 200, "headers": [LENGTH]})
    await send({"type": "http.response.body", "body": b"body"})
    await receive()


async def test_a_connection_is_closed_that_stays_idle_after_an_early_reply() -> None:
    state, line = ServerState(), Transport()
    protocol = opened(rejecting, line, state, keep_alive_seconds=0)
    protocol.data_received(POST + b"Content-Length: 2\r\n\r\n1")
    await asyncio.wait(state.tasks, timeout=20)
    assert not line.closing
    protocol.data_received(b"2")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert line.closing
    protocol.connection_lost(None)


def test_an_ended_connection_is_closed_after_a_second() -> None:
    line, loop = Transport(), Mock()
    lingering = Lingering(line, loop)
    lingering.begin()
    lingering.begin()
    lingering.received(LINGER_BYTES)
    assert (line.ended, line.paused) == (True, False)
    [[seconds, close]] = [call.args for call in loop.call_later.mock_calls]
    close()
    assert (seconds, line.closing) == (LINGER_SECONDS, True)


async def test_connections_beyond_the_limit_get_503_and_further_ones_are_closed() -> None:
    state, lines = ServerState(), [Transport() for _ in range(LIMITS.max_connections + 20)]
    protocols = [opened(make_app(), line, state) for line in lines]
    accepted = LIMITS.max_connections + REFUSED_CONNECTIONS
    assert [line.closing for line in lines] == [number >= accepted for number in range(len(lines))]
    protocols[0].data_received(GET % 1)
    await asyncio.wait(state.tasks, timeout=20)
    assert lines[0].written.startswith(b"HTTP/1.1 503 ")
    assert b"\r\nx-replica: replica1\r\n" in lines[0].written
    for protocol in protocols:
        protocol.connection_lost(None)


@pytest.mark.parametrize("requests_before", [0, 1])
async def test_a_request_on_its_way_at_a_shutdown_is_answered(
    requests_before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paddlepool.service.server.connection_limits.IDLE_GRACE_SECONDS", 0.05)
    state, line, closed = ServerState(), Transport(), asyncio.Event()
    monkeypatch.setattr(line, "close", closed.set)
    protocol = opened(describe_request, line, state)
    for number in range(requests_before):
        protocol.data_received(GET % number)
        await asyncio.wait(state.tasks, timeout=20)
    protocol.shutdown()
    assert not closed.is_set()
    protocol.data_received(GET % 7)
    await asyncio.wait_for(closed.wait(), 20)
    protocol.connection_lost(None)
    assert line.written.endswith(b"/7 0>")


def replying(*parts: bytes, headers: Sequence[tuple[bytes, bytes]]) -> ASGIApp:
    """An application whose reply has these headers and parts."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": list(headers)})
        for part in parts[:-1]:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": parts[-1]})

    return app


@pytest.mark.parametrize("size", [0, JOINED_BYTES, JOINED_BYTES + 1])
def test_a_small_reply_is_one_write_and_a_large_body_is_not_copied(size: int) -> None:
    body = bytes(size)
    app = replying(body, headers=[(b"content-length", b"%d" % size)])
    line = completed(GET % 1, app=app)
    assert line.written.endswith(b"\r\n\r\n" + body)
    assert len(line.writes) == 1 or line.writes[1] is body
    assert (len(line.writes) == 1) is (size <= JOINED_BYTES)


LENGTH = (b"content-length", b"4")


REPLIES = {
    "whole": ([b"body"], [LENGTH]),
    "closing": ([b"body"], [LENGTH, (b"x-mark", b"1"), (b"connection", b"close")]),
    "chunked": ([b"body"], []),
    "parts": ([b"bo", b"dy"], [LENGTH]),
    "large": ([bytes(100_000)], [(b"content-length", b"100000")]),
    "too short": ([b"body"], [(b"content-length", b"5")]),
    "injected": ([b"body"], [LENGTH, (b"x-mark", b"a\r\nset-cookie: b")]),
    "LF": ([b"body"], [LENGTH, (b"x-mark", b"a\nb")]),
    "CR": ([b"body"], [LENGTH, (b"x-mark", b"a\rb")]),
    "both": ([b"body"], [LENGTH, (b"transfer-encoding", b"chunked")]),
}


@pytest.mark.parametrize("method", [b"GET", b"HEAD"])
@pytest.mark.parametrize(("parts", "headers"), REPLIES.values(), ids=REPLIES)
def test_a_reply_in_one_write_is_that_of_uvicorn(
    method: bytes,
    parts: list[bytes],
    headers: list[tuple[bytes, bytes]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Byte for byte, and an invalid header is an error in both."""
    request = b"%b / HTTP/1.1\r\n%b\r\n" % (method, HOST)
    app = replying(*parts, headers=headers)
    in_one_write = replies(request, request, app=app)
    monkeypatch.setattr(WholeReply, "_send_whole", lambda *_: False)
    assert replies(request, request, app=app) == in_one_write
    assert b"set-cookie" not in in_one_write
