"""The balancer's configuration, and replicas behind it that die."""

import http.client
import json
import re
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from balanced import CONFIGURATION, balancer, local_configuration
from harness import HOST, ROOT
from under_ray import PYTHON as RAY

from app.settings import Settings

HAPROXY = shutil.which("haproxy")
needs_haproxy = pytest.mark.skipif(
    HAPROXY is None, reason="SKIPPED BALANCER TESTS: haproxy is absent (apt-get install haproxy)"
)


def seconds(name: str) -> float:
    """Of one timeout of the configuration."""
    found = re.search(rf"(?m)^\s+(?:timeout|default-server) {name} (\d+)s", text())
    assert found is not None
    return float(found[1])


def text() -> str:
    return CONFIGURATION.read_text("utf-8")


def test_its_timeouts_go_with_the_servers() -> None:
    """The replica's own 504 comes first, and no request goes into a connection being closed."""
    settings = Settings()
    assert seconds("server") * 1000 > settings.timeout_max_ms
    assert seconds("http-request") > settings.receive_timeout_seconds
    assert seconds("pool-purge-delay") < settings.keep_alive_seconds


def test_a_draining_replica_is_left_before_it_stops_answering() -> None:
    """One failed check a second, and the drain delay of five."""
    assert "inter 1s" in text()
    assert "fall 1" in text()
    assert Settings().drain_delay_seconds > 2


@needs_haproxy
def test_haproxy_accepts_it(tmp_path: Path) -> None:
    file = tmp_path / "haproxy.cfg"
    file.write_text(local_configuration([1, 2], port=3, status_port=4), "utf-8")
    done = subprocess.run(
        [str(HAPROXY), "-c", "-f", file], capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, "warning" in done.stderr.lower()) == (0, False), done.stderr


class Everything(BaseHTTPRequestHandler):
    """A replica that has every path."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@needs_haproxy
@pytest.mark.slow
def test_what_belongs_to_one_replica_is_not_found_however_it_is_spelt(tmp_path: Path) -> None:
    with ThreadingHTTPServer((HOST, 0), Everything) as replica:
        threading.Thread(target=replica.serve_forever, daemon=True).start()
        with balancer(Path(str(HAPROXY)), [replica.server_port], tmp_path) as port:
            got = {path: status_of(port, path) for path in (*OF_ONE, "/sentiment")}
        replica.shutdown()
    assert got == dict.fromkeys(OF_ONE, 404) | {"/sentiment": 200}


@needs_haproxy
@pytest.mark.slow
def test_an_address_that_asks_too_often_gets_429(tmp_path: Path) -> None:
    with ThreadingHTTPServer((HOST, 0), Everything) as replica:
        threading.Thread(target=replica.serve_forever, daemon=True).start()
        ports = [replica.server_port]
        with balancer(Path(str(HAPROXY)), ports, tmp_path, requests=9) as port:
            got = [status_of(port, "/sentiment") for _ in range(12)]
        replica.shutdown()
    assert (got[0], got[-1]) == (200, 429)


def test_what_the_balancer_says_by_itself_is_in_the_servers_words() -> None:
    """Its 429 and 503 have the codes of docs/errors.md."""
    for name, code in (("429.json", "quota_exceeded"), ("503.http", "overloaded")):
        file = CONFIGURATION.with_name(name).read_text("utf-8")
        problem = json.loads(file[file.index("{") :])
        assert (problem["status"], problem["code"]) == (int(name[:3]), code)


OF_ONE = (
    *("/metrics", "/%6Detrics", "/metrics?a=b"),
    *("/v2/repository/index", "/v2/%72epository/index", "/%762/repository/index"),
)


def status_of(port: int, path: str) -> int:
    connection = http.client.HTTPConnection(HOST, port, timeout=10)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.nightly
@pytest.mark.parametrize(
    "where",
    [
        pytest.param("proxy", marks=needs_haproxy),
        pytest.param("ray", marks=pytest.mark.skipif(not RAY.exists(), reason="no .venv-ray")),
    ],
)
def test_nothing_is_lost_while_replicas_are_killed(where: str) -> None:
    """Two replicas, a kill every ten seconds, every answer compared with the calm one."""
    options = (where, "--replicas", "2", "--seconds", "15", "--only", "chaos")
    done = subprocess.run(
        [sys.executable, ROOT / "loadtest" / "replicas.py", *options],
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert (done.returncode, "0 wrong" in done.stdout) == (0, True), done.stdout + done.stderr
