"""Broken, slow and hostile clients, over raw sockets."""

import contextlib
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPResponse

import pytest

from tests.e2e.conftest import SHORT
from tests.e2e.probe import LIVE
from tests.e2e.process import Server, read_all, read_reply, status_of, wait_until

pytestmark = pytest.mark.e2e

HOST = b"Host: localhost\r\n"
POST = b"POST /slow?seconds=0 HTTP/1.1\r\n" + HOST
HUNG = 15.0
"""Seconds: more than a deadline and its reply take on a busy machine."""


def exchange(server: Server, *parts: bytes) -> bytes:
    with server.connect() as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has read enough
            for part in parts:
                connection.sendall(part)
        return read_all(connection)


def timed(server: Server, first: bytes, drip: bytes = b"") -> tuple[bytes, float]:
    """Send `first`, then `drip` every 0.2 s until the server ends it; the reply and the time."""
    started = time.monotonic()
    with server.connect() as connection:
        connection.sendall(first)
        connection.settimeout(0.2)
        received = b""
        while time.monotonic() - started < 2 * HUNG:
            try:
                data = connection.recv(65_536)
            except TimeoutError:
                if drip:
                    connection.sendall(drip)
                continue
            except ConnectionResetError:
                break
            if not data:
                break
            received += data
        return received, time.monotonic() - started


SLOW_BODY = POST + b"Content-Length: 1000\r\n\r\n"
SLOW: dict[str, tuple[bytes, bytes, str]] = {
    "silent": (b"", b"", "header_timeout_seconds"),
    "half a header": (b"GET / HTTP/1.1\r\nHost:", b"", "header_timeout_seconds"),
    "dripping header": (b"GET / HTTP/1.1\r\n", b"A: b\r\n", "header_timeout_seconds"),
    # The parser passes over empty lines; they must not end the time between two requests.
    "empty lines": (LIVE, b"\r\n", "keep_alive_seconds"),
    "silent body": (SLOW_BODY, b"", "receive_timeout_seconds"),
    "dripping body": (SLOW_BODY, b"x", "receive_timeout_seconds"),
}
"""What is sent at once and then again and again, and the setting that ends it."""


def reads_nothing(server: Server) -> None:
    """A large reply does not stay in memory for it; it gets what the system holds."""
    with server.connect() as connection:
        started = time.monotonic()
        connection.sendall(b"GET /slow/large?size=20000000 HTTP/1.1\r\n" + HOST + b"\r\n")
        line = server.wait_logged(event="client stalled")
        assert 0.95 * SHORT["send_stall_seconds"] <= time.monotonic() - started < HUNG
        assert line["left_bytes"] > 1_000_000
        assert len(read_all(connection)) < 20_000_000


def reads_a_little_all_the_time(server: Server) -> None:
    """It gets everything, although the system asks for more only when a third has gone."""
    with server.connect() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        head = b"GET /slow/large?size=6000000 HTTP/1.1\r\nConnection: close\r\n" + HOST
        connection.sendall(head + b"\r\n")
        until, received = time.monotonic() + 3 * SHORT["send_stall_seconds"], 0
        while time.monotonic() < until:
            received += len(connection.recv(5_000))
            time.sleep(0.05)
        assert received < 2_000_000
        while data := connection.recv(1_000_000):
            received += len(data)
        assert received > 6_000_000


def waits_for_a_slow_handler(server: Server) -> None:
    """The deadlines end with the last byte of the request."""
    head = b"POST /slow?seconds=3.5 HTTP/1.1\r\nConnection: close\r\n" + HOST
    assert status_of(exchange(server, head + b"Content-Length: 1\r\n\r\nx")) == 200


def asks_three_times_and_stops(server: Server) -> None:
    """Keep-alive: each request runs on the first one's connection, which is then closed."""
    with server.connect() as connection:
        for _ in range(3):
            started = time.monotonic()
            connection.sendall(LIVE)
            assert read_reply(connection).status == 200
        assert connection.recv(1) == b""
        assert 0.95 * SHORT["keep_alive_seconds"] <= time.monotonic() - started < HUNG


PATIENT = (
    reads_nothing,
    reads_a_little_all_the_time,
    waits_for_a_slow_handler,
    asks_three_times_and_stops,
)


def test_deadlines_end_slow_clients_and_nobody_else(strict_server: Server) -> None:
    """All of them at once, because each takes seconds; a slow request gets 408."""
    with ThreadPoolExecutor(len(SLOW) + len(PATIENT)) as clients:
        pending = [
            clients.submit(timed, strict_server, first, drip) for first, drip, _ in SLOW.values()
        ]
        patient = [clients.submit(future, strict_server) for future in PATIENT]
    for future in patient:
        future.result()
    for (name, (_, _, setting)), client in zip(SLOW.items(), pending, strict=True):
        received, seconds = client.result()
        reply = received[received.rindex(b"HTTP/1.1 ") :]
        assert status_of(reply) == 408, name
        assert b'"code": "request_timeout"' in reply, name
        assert 0.95 * SHORT[setting] <= seconds < HUNG, name


def test_head_is_get_without_its_body(strict_server: Server) -> None:
    with strict_server.connect() as connection:
        connection.sendall(LIVE)
        length = read_reply(connection).headers["content-length"]
        assert int(length) > 0
        connection.sendall(LIVE.replace(b"GET", b"HEAD"))
        pending = read_reply(connection, "HEAD")
        assert (pending.status, pending.headers["content-length"]) == (200, length)
        connection.sendall(LIVE)
        assert read_reply(connection).status == 200
    missing = exchange(
        strict_server, b"HEAD /nothing HTTP/1.1\r\nConnection: close\r\n" + HOST + b"\r\n"
    )
    assert status_of(missing) == 404
    assert b"server:" not in missing.lower()
    line = strict_server.wait_logged(method="HEAD", status=404)
    assert line["replica"] == socket.gethostname()


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\n" + HOST + b"A: " + b"x" * 1_000_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + HOST + b"A: " + b"x" * 1_000_000,
        b"GET / HTTP/1.1\r\n" + HOST + b"A: b\r\n" * 20_000 + b"\r\n",
        b"GET /" + b"x" * 40_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET / HTTP/1.1\r\n" + HOST + b"A: " + b"x" * 33_000 + b"\r\n\r\n",
    ],
    ids=["one-header", "without-end", "many-headers", "url", "just-over"],
)
def test_giant_headers_get_431(strict_server: Server, head: bytes) -> None:
    """More than 32 KiB are refused, also before they end."""
    with strict_server.connect() as connection:
        connection.settimeout(20)
        try:
            connection.sendall(head)
        except (BrokenPipeError, ConnectionResetError):
            pytest.fail("the reply was lost in a reset")
        reply = read_all(connection)
    assert status_of(reply) == 431
    assert b'"code": "headers_too_large"' in reply
    assert b'"limit": 32768' in reply


SMUGGLING = {
    "cl-and-te": b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "te-and-cl": b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "two-cl": b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    "negative-cl": b"Content-Length: -1\r\n\r\n",
    "plus-cl": b"Content-Length: +5\r\n\r\nhello",
    "hex-cl": b"Content-Length: 0x5\r\n\r\nhello",
    "list-cl": b"Content-Length: 5, 5\r\n\r\nhello",
    "huge-cl": b"Content-Length: 99999999999999999999\r\n\r\n",
    "chunked-not-last": b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "bad-chunk-size": b"Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
    "space-before-colon": b"Content-Length : 5\r\n\r\nhello",
    "folded-header": b"A: b\r\n c\r\n\r\n",
    "nul-in-header": b"A: \x00b\r\n\r\n",
    "bare-cr": b"A: b\rContent-Length: 5\r\n\r\nhello",
    "bare-lf": b"A: b\nContent-Length: 0\n\n",
    "second-host": b"Host: y\r\n\r\n",
    "chunked-twice": b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "upgrade-and-both": b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 5\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "upgrade-and-bad-chunk": b"Connection: Upgrade\r\nUpgrade: h2c\r\n"
    b"Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
}


CODINGS = {  # they may exist elsewhere
    "unknown": b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "list": b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "two-headers": b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("name", [*SMUGGLING, *CODINGS])
def test_what_two_servers_could_read_differently_is_refused(
    strict_server: Server, name: str
) -> None:
    """400, or 501, and the connection closed: nothing behind it is taken for a request."""
    reply = exchange(strict_server, POST + (SMUGGLING | CODINGS)[name], LIVE)
    assert status_of(reply) == (501 if name in CODINGS else 400)
    assert reply.count(b"HTTP/1.1 ") == 1


def test_a_connection_is_idle_again_after_an_early_refusal(strict_server: Server) -> None:
    """A 413 is sent before the body has come; the rest of it is read and thrown away."""
    body = b"x" * 1_000_000
    with strict_server.connect() as connection:
        connection.sendall(POST + b"Content-Length: %d\r\n\r\n" % len(body))
        assert read_reply(connection).status == 413
        connection.sendall(body)
        connection.sendall(LIVE)
        assert read_reply(connection).status == 200
        started = time.monotonic()
        assert connection.recv(1) == b""
        assert time.monotonic() - started < HUNG


def test_who_sends_everything_before_reading_hears_why_it_was_refused(
    strict_server: Server,
) -> None:
    """The reply is there although the connection is cut while it sends."""
    head = b"POST /sentiment HTTP/1.1\r\n" + HOST + b"Content-Length: 30000000\r\n\r\n"
    with strict_server.connect() as connection:
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            connection.sendall(head + bytes(30_000_000))
        assert status_of(read_all(connection)) == 413


def test_a_body_is_asked_for_only_where_it_fits(strict_server: Server) -> None:
    head = POST + b"Expect: 100-continue\r\n"
    with strict_server.connect() as connection:
        for _ in range(2):  # the connection is kept
            connection.sendall(head + b"Content-Length: 3\r\n\r\n")
            assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
            connection.sendall(b"abc")
            assert status_of(connection.recv(1 << 16)) == 200
    reply = exchange(strict_server, head + b"Content-Length: 1000000\r\n\r\n")
    assert status_of(reply) == 413
    assert reply.count(b"HTTP/1.1 ") == 1


def test_a_body_that_never_comes_after_its_refusal_gets_no_second_reply(
    strict_server: Server,
) -> None:
    reply, seconds = timed(strict_server, POST + b"Content-Length: 1000000\r\n\r\n", b"x")
    assert status_of(reply) == 413
    assert reply.count(b"HTTP/1.1 ") == 1
    assert seconds < HUNG


OFFERS = {
    # As the HttpClient of JDK 17 writes them with every request.
    "jdk": b"Connection: Upgrade, HTTP2-Settings\r\n"
    b"HTTP2-Settings: AAEAAEAAAAIAAAAAAAMAAAAAAAQBAAAAAAUAAEAAAAYABgAA\r\n"
    b"Upgrade: h2c\r\nUser-Agent: Java-http-client/17.0.15\r\n",
    "websocket": b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n",
    "several": b"Connection: keep-alive, upgrade\r\nUpgrade: TLS/1.0, IRC/6.9\r\n",
}
BODIES = {
    "none": b"\r\n",
    "length": b"Content-Length: %d\r\n\r\n" % len(LIVE) + LIVE,
    "chunks": b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(LIVE)
    + LIVE
    + b"\r\n0\r\nA: b\r\n\r\n",
}


@pytest.mark.parametrize("pieces", [1, 7], ids=["at once", "in pieces"])
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("offer", OFFERS)
def test_an_offer_of_another_protocol_is_ignored(
    strict_server: Server, offer: str, body: str, pieces: int
) -> None:
    """RFC 9110, 7.8: the request is answered over HTTP/1.1, and so is the next one."""
    sent = POST + OFFERS[offer] + BODIES[body]
    size = len(sent) // pieces + 1
    with strict_server.connect() as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(2):
            for start in range(0, len(sent), size):
                connection.sendall(sent[start : start + size])
                if pieces > 1:
                    time.sleep(0.005)  # else the system may put the pieces together again
            reply = HTTPResponse(connection)
            reply.begin()
            assert reply.status == 200
            assert json.loads(reply.read()) == {"bytes": 0 if body == "none" else len(LIVE)}
        connection.sendall(LIVE)
        assert read_reply(connection).status == 200


def test_offers_that_follow_each_other_are_answered_in_order(strict_server: Server) -> None:
    requests = [POST + OFFERS["jdk"] + body for body in BODIES.values()]
    last = LIVE.replace(HOST, HOST + b"Connection: close\r\n")
    reply = exchange(strict_server, b"".join(requests * 4) + last)
    assert reply.count(b"HTTP/1.1 200 ") == reply.count(b"HTTP/1.1 ") == 13


def half_closed(server: Server, request: bytes) -> bytes:
    with server.connect() as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        return read_all(connection)


def test_a_client_that_closes_its_sending_side_gets_its_replies(strict_server: Server) -> None:
    """All of those that it has asked for completely; an interim response may come first."""
    slow = b"POST /slow?seconds=0.3 HTTP/1.%d\r\n" + HOST + b"Content-Length: 2\r\n\r\nab"
    reply = half_closed(strict_server, slow % 1 + LIVE + slow % 1)
    assert reply.count(b"HTTP/1.1 200 ") == 3
    assert reply.count(b"HTTP/1.1 100 Continue\r\n\r\n") == 1
    assert reply.endswith(b'{"bytes":2}')
    assert half_closed(strict_server, slow % 0).count(b"HTTP/1.1 ") == 1
    assert half_closed(strict_server, LIVE).count(b"HTTP/1.1 200 ") == 1
    assert b"HTTP/1.1 200" not in half_closed(strict_server, (slow % 1)[:-1])


def test_who_has_left_is_not_worked_for(strict_server: Server) -> None:
    """Though its end of the connection looks as if it only sent no more."""

    def counts() -> dict[str, int]:
        with strict_server.client() as client:
            counted: dict[str, int] = client.get("/slow/counts").json()
            return counted

    before = counts()
    for _ in range(4):
        with strict_server.connect() as connection:
            connection.sendall(b"POST /slow?seconds=60 HTTP/1.1\r\n" + HOST + b"\r\n")
            started = before["started"] = before["started"] + 1
            wait_until(lambda started=started: counts()["started"] == started)  # type: ignore[misc]
    wait_until(lambda: counts()["cancelled"] == before["cancelled"] + 4)


def test_blanks_after_a_value_are_no_part_of_it(strict_server: Server) -> None:
    """RFC 9112, 5.1. A name of the server is one of those that are allowed."""
    head = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost \t\r\nConnection: close\r\n"
    reply = exchange(strict_server, head + b"X-Request-ID: mine \r\n\r\n")
    assert status_of(reply) == 200
    assert b"x-request-id: mine\r\n" in reply


def test_a_tunnel_is_refused_and_nothing_behind_it_read(strict_server: Server) -> None:
    for rest in BODIES.values():
        reply = exchange(strict_server, b"CONNECT localhost:80 HTTP/1.1\r\n" + HOST + rest, LIVE)
        assert status_of(reply) == 400
        assert reply.count(b"HTTP/1.1 ") == 1
