"""Many clients at once: those that leave, those that scan, and a probe that must be answered."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.probe import assert_live_within
from tests.e2e.process import Server, read_reply, running, status_of, wait_until

pytestmark = pytest.mark.e2e


def counts(server: Server) -> dict[str, int]:
    with server.client() as client:
        return dict(client.get("/slow/counts").json())


def test_work_ends_when_its_client_has_gone(tmp_path: Path) -> None:
    """100 requests, 90 of them closed: 90 handlers are cancelled, 10 answer; the log says 499."""
    (tmp_path / "models").mkdir()
    with running(tmp_path / "models", tmp_path, module="tests.e2e.slow_server") as server:
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


def series(server: Server) -> set[tuple[str, frozenset[tuple[str, str]]]]:
    with server.client() as client:
        text = client.get("/metrics").text
    return {
        (sample.name, frozenset(sample.labels.items()))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.mark.nightly
def test_20000_random_requests_add_no_series(server: Server) -> None:
    """Paths, methods, versions and model names that nobody has; every one is answered."""
    series(server)
    before = series(server)
    generator = random.Random(7)
    methods = ["GET", "GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "PROPFIND", "LOCK"]
    answered = 0
    with server.connect() as connection:
        for _ in range(1_250):
            batch = b""
            for _ in range(16):  # as many as may wait on one connection
                word = f"{generator.getrandbits(48):x}"
                path = generator.choice(
                    [f"/{word}", f"/v2/models/{word}", f"/v2/models/{word}/ready", f"/a/{word}?q=1"]
                )
                method = generator.choice(methods)
                batch += f"{method} {path} HTTP/1.1\r\nHost: {word}\r\n\r\n".encode()
            connection.sendall(batch)
            reply = b""
            while reply.count(b"HTTP/1.1 4") < 16 or not reply.endswith((b"}", b"\n")):
                data = connection.recv(1 << 20)
                assert data, reply[-500:]
                reply += data
            answered += reply.count(b"HTTP/1.1 40")
    assert answered == 20_000
    assert series(server) == before


BURN = "import time; end = time.monotonic() + 120\nwhile time.monotonic() < end: pass"


@pytest.mark.nightly
def test_liveness_answers_while_every_core_is_busy(server: Server) -> None:
    """p99 within 50 ms while as many processes as cores compute at a predictor's priority."""
    burners = [
        subprocess.Popen(["nice", "-n", "5", sys.executable, "-c", BURN])
        for _ in range(len(os.sched_getaffinity(0)))
    ]
    try:
        assert_live_within(server, seconds=0.050)
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
