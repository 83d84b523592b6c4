"""Many clients at once: those that leave, those that scan, and a probe that must be answered."""

import re

import pytest

from tests.e2e.process import Server, read_reply, wait_until

pytestmark = pytest.mark.e2e


def counts(server: Server) -> dict[str, int]:
    with server.client() as client:
        return dict(client.get("/slow/counts").json())


def left(server: Server) -> int:
    """Requests to /slow whose client had gone, by the metrics."""
    with server.client() as client:
        text = client.get("/metrics").text
    name = "paddlepool_request_duration_seconds_count"
    match = re.search(rf'{name}{{method="POST",route="/slow",status="499"}} (\d+)', text)
    return int(match[1]) if match else 0


def test_work_ends_when_its_client_has_gone(strict_server: Server) -> None:
    """Of 50 clients 40 leave in a handler, and one more before its body is complete: 499."""
    head = b"POST /slow?seconds=%d HTTP/1.1\r\nHost: localhost\r\nX-Request-ID: crowd-%d\r\n"
    before, gone = counts(strict_server), left(strict_server)
    connections = [strict_server.connect() for _ in range(50)]
    for number, connection in enumerate(connections):
        request = head % (3 if number < 10 else 1000, number) + b"Content-Length: 1\r\n\r\nx"
        connection.sendall(request)
    wait_until(lambda: counts(strict_server)["started"] == before["started"] + 50)
    with strict_server.connect() as connection:
        connection.sendall(head % (0, 50) + b"Content-Length: 100\r\n\r\nhalf")
    for connection in connections[10:]:
        connection.close()
    for connection in connections[:10]:
        assert read_reply(connection).status == 200
        connection.close()
    more = {"started": 50, "cancelled": 40, "answered": 10}
    ended = {name: before[name] + more[name] for name in before}
    for number in range(51):
        line = strict_server.wait_logged(request_id=f"crowd-{number}")
        assert line["status"] == (200 if number < 10 else 499)
    assert left(strict_server) == gone + 41
    assert counts(strict_server) == ended
