"""The client of many requests a second: it waits for nobody, and tells how each request ended."""

import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import cast

import harness
import pytest
from harness import HOST, request
from load_clients import HttpWay, arrivals

from tests.http_stub import Server

LARGE = 8 << 20
"""More than sockets hold: it is sent in parts."""


class Handler(BaseHTTPRequestHandler):
    """Answers what it is asked for; whoever asks for 503 is refused before the body is read."""

    protocol_version = "HTTP/1.1"
    connections: Counter[object]

    def do_POST(self) -> None:
        self.connections[self.client_address] += 1
        status = int(self.path[1:4])
        if status == 503:
            self.close_connection = True
        else:
            self.rfile.read(int(self.headers["content-length"]))
        if self.path.endswith("close"):
            self.close_connection = True
        if self.path.endswith("slow"):
            time.sleep(0.3)
        self.send_response(status)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.send_header("Content-Length", str(LARGE if status == 200 else 2))
        self.end_headers()
        self.wfile.write(b"x" * (LARGE if status == 200 else 2))
        if self.close_connection:  # a reset would take the reply with it
            self.connection.shutdown(socket.SHUT_WR)
            while self.rfile.read1(1 << 16):
                pass

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def port() -> Iterator[int]:
    Handler.connections = Counter()
    with Server((HOST, 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def post(path: str, size: int = 2) -> bytes:
    return request("POST", path, b"y" * size, content_type="text/plain")


def way(port: int, path: str, *, units: int = 1) -> HttpWay:
    """A benchmark's request to the stub, whose process it does not use."""
    server = harness.Server(port, cast("subprocess.Popen[bytes]", None), Path())
    return HttpWay(server, post(path), units)


def test_each_request_ends_with_its_status(port: int) -> None:
    ended = arrivals(port, post("/200", LARGE), rate=5, seconds=1.0)
    assert [reply.status for reply in ended] == [200] * 5
    assert sum(Handler.connections.values()) == 5
    assert len(Handler.connections) < 5


def test_what_is_refused_before_it_was_sent_needs_another_connection(port: int) -> None:
    """The rest of the body is sent to nobody."""
    ended = arrivals(port, post("/503", LARGE), rate=20, seconds=0.25)
    assert [reply.status for reply in ended] == [503] * 5
    assert len(Handler.connections) == 5


def test_nobody_waits_for_the_answers_before(port: int) -> None:
    """Twenty answers of 0.3 s each arrive within less than the time of three."""
    began = time.perf_counter()
    ended = arrivals(port, post("/404slow"), rate=100, seconds=0.2)
    assert time.perf_counter() - began < 0.9
    assert len(ended) == 20
    assert min(reply.seconds for reply in ended) >= 0.3


def test_a_client_sends_again_until_the_time_is_over(port: int) -> None:
    """Replies of 8 MiB arrive in parts."""
    rate = way(port, "/200", units=3).rate(clients=2, seconds=0.3)
    assert len(Handler.connections) == 2
    assert min(Handler.connections.values()) > 1
    assert rate <= 3 * sum(Handler.connections.values()) / 0.3


def test_another_status_ends_the_measurement(port: int) -> None:
    with pytest.raises(RuntimeError, match="404"):
        way(port, "/404").rate(clients=2, seconds=5.0)
    assert sum(Handler.connections.values()) <= 4


def test_a_closed_connection_ends_the_measurement(port: int) -> None:
    with pytest.raises(ConnectionError):
        way(port, "/200close").rate(clients=1, seconds=5.0)
