"""Many clients at once: those that leave, those that scan, and a probe that must be answered."""

from pathlib import Path

import pytest

from tests.e2e.process import Server, read_reply, running, status_of, wait_until

pytestmark = pytest.mark.e2e


def counts(server: Server) -> dict[str, int]:
    with server.client() as client:
        return dict(client.get("/slow/counts").json())


def test_work_ends_when_its_client_has_gone(tmp_path: Path) -> None:
    """100 requests, 90 of them closed: 90 handlers are cancelled, 10 answer; the log says 499."""
    (tmp_path / "models").mkdir()
    with running(tmp_path / "models", tmp_path, module="tests.e2e.altered_server") as server:
        request = b"POST /slow?seconds=%d HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx"
        connections = [server.connect() for _ in range(100)]
        for number, connection in enumerate(connections):
            connection.sendall(request % (3 if number < 10 else 1000))
        wait_until(lambda: counts(server)["started"] == 100)
        for connection in connections[10:]:
            connection.close()
        for connection in connections[:10]:
            assert status_of(read_reply(connection)) == 200
            connection.close()
        ended = {"started": 100, "cancelled": 90, "answered": 10}
        wait_until(lambda: counts(server) == ended)
        lines = server.wait_all_logged(100, route="/slow")
        assert sorted(line["status"] for line in lines) == [200] * 10 + [499] * 90
        with server.client() as client:
            text = client.get("/metrics").text
        name = "paddlepool_request_duration_seconds_count"
        assert f'{name}{{method="POST",route="/slow",status="499"}} 90.0' in text


def test_a_client_that_leaves_in_its_body_harms_nobody(strict_server: Server) -> None:
    """The handler never starts its work, and nothing is logged as a failure."""
    head = b"POST /slow?seconds=0 HTTP/1.1\r\nHost: localhost\r\nX-Request-ID: left-early\r\n"
    before = counts(strict_server)["started"]
    with strict_server.connect() as connection:
        connection.sendall(head + b"Content-Length: 100\r\n\r\nhalf")
    line = strict_server.wait_logged(request_id="left-early")
    assert line["status"] == 499
    assert counts(strict_server)["started"] == before
