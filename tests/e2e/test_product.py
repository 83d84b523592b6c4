"""The models of the repository behind a real socket, against hostile requests."""

import io
import json
import math
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.probe import assert_live_within
from tests.e2e.process import ROOT, Server, read_reply, status_of, wait_until
from tests.engine.process.kernel import available_measures

pytestmark = [pytest.mark.e2e, pytest.mark.paddle]

BLNS = ROOT / ".." / "shared" / "data" / "blns.json"
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def client(full_server: Server) -> Iterator[httpx.Client]:
    with full_server.client() as client:
        yield client


def test_info_tells_what_confines_the_processes_that_serve(
    full_server: Server, client: httpx.Client
) -> None:
    available = list(available_measures())
    confinement = client.get("/info").json()["confinement"]
    assert confinement == {"codecs": available, "predictors": available}
    states = [Path(f"/proc/{pid}/status").read_text("ascii") for pid in full_server.children()]
    assert len(states) > 2
    assert all("\nNoNewPrivs:\t1\n" in state for state in states)
    if "seccomp" in available:
        assert all("\nSeccomp:\t2\n" in state for state in states)


@pytest.mark.skipif(not BLNS.exists(), reason="the list of naughty strings is not beside us")
def test_naughty_strings_get_200_or_422_and_no_echo(
    full_server: Server, client: httpx.Client
) -> None:
    """Each of 515; the scores of those that are answered are finite and sum to one."""
    strings = json.loads(BLNS.read_text("utf-8"))
    assert len(strings) > 500
    answered = 0
    for string in strings:
        response = client.post("/sentiment", content=json.dumps({"text": string}), headers=JSON)
        assert response.status_code in (200, 422), repr(string)
        if response.status_code == 200:
            answered += 1
            assert math.isclose(sum(item["score"] for item in response.json()), 1, abs_tol=1e-5)
        if len(string) > 12:
            assert string not in response.text
    assert answered > 450
    client.get("/v2", headers={"X-Request-ID": "after-naughty-strings"})
    full_server.wait_logged(request_id="after-naughty-strings")  # so all before it are there
    log = full_server.text()
    assert not [string for string in strings if len(string) > 12 and string in log]


def a_picture() -> bytes:
    file = io.BytesIO()
    Image.linear_gradient("L").resize((640, 480)).convert("RGB").save(file, "PNG")
    return file.getvalue()


def read_metrics(client: httpx.Client) -> dict[tuple[str, str], float]:
    """Sums over u2netp's series, by name and reason."""
    sums: defaultdict[tuple[str, str], float] = defaultdict(float)
    for family in text_string_to_metric_families(client.get("/metrics").text):
        for sample in family.samples:
            if sample.labels.get("model") == "u2netp" and "le" not in sample.labels:
                sums[sample.name, sample.labels.get("reason", "")] += sample.value
    return sums


def test_jobs_of_clients_that_left_never_run(full_server: Server, client: httpx.Client) -> None:
    """Of 16 queued pictures 13 are given up: their jobs leave the queue, the others are done."""
    picture = a_picture()
    head = b"POST /segment?output=mask&timeout_ms=30000 HTTP/1.1\r\nHost: localhost\r\n"
    head += b"Content-Type: image/png\r\n"
    request = head + b"Content-Length: %d\r\n\r\n" % len(picture) + picture
    queue, running_now = ("paddlepool_queue_depth", ""), ("paddlepool_inflight_requests", "")
    runs = ("paddlepool_predictor_infer_seconds_count", "")
    connections = [full_server.connect() for _ in range(16)]
    for connection in connections:
        connection.sendall(request)
    for connection in connections[3:]:
        connection.close()
    before = read_metrics(client)  # what ran while nobody had left does not count
    for connection in connections[:3]:
        assert status_of(read_reply(connection)) == 200
        connection.close()
    wait_until(lambda: not (read_metrics(client)[queue] + read_metrics(client)[running_now]))
    now = read_metrics(client)
    # A job that has entered a predictor runs to its end; one more may be on its way to it.
    assert now[runs] - before[runs] <= 3 + 4


@pytest.mark.nightly  # measures times
def test_liveness_answers_while_predictors_use_every_core(full_server: Server) -> None:
    """p99 within 50 ms under more pictures and texts than the machine can take."""
    picture = a_picture()
    stop = threading.Event()
    answers: list[int] = []

    def load(path: str, options: dict[str, Any]) -> None:
        with full_server.client() as client:
            while not stop.is_set():
                answers.append(client.post(path, **options).status_code)

    requests: list[tuple[str, dict[str, Any]]] = [
        (
            "/segment?timeout_ms=30000",
            {"content": picture, "headers": {"Content-Type": "image/png"}},
        ),
        ("/sentiment?timeout_ms=30000", {"json": {"text": "今天很开心" * 20}}),
    ]
    threads = [threading.Thread(target=load, args=request) for request in requests * 4]
    for thread in threads:
        thread.start()
    try:
        assert_live_within(full_server, seconds=0.050)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert answers
    assert set(answers) <= {200, 503}
