"""The balancer's configuration, and replicas behind it that die."""

import contextlib
import http.client
import json
import re
import shutil
import ssl
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from harness import HOST, ROOT
from replicas import CONFIGURATION, balancer, local_configuration
from replicas import PYTHON as RAY

from paddlepool.settings.server import Settings
from tests.http_stub import Reply, http_stub
from tests.ran import ran

PATIENCE = 20.0
HAPROXY = shutil.which("haproxy")
needs_haproxy = pytest.mark.skipif(
    HAPROXY is None, reason="SKIPPED BALANCER TESTS: haproxy is absent (apt-get install haproxy)"
)


def seconds(name: str) -> float:
    """Of one timeout of the configuration."""
    match = re.search(rf"(?m)^\s+(?:timeout|default-server) {name} (\d+)s", text())
    assert match is not None
    return float(match[1])


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
    done = ran([str(HAPROXY), "-c", "-f", file], check=False)
    assert (done.returncode, "warning" in done.stderr.lower()) == (0, False), done.stderr


def everything(path: str, _body: bytes) -> Reply:
    """A replica that has every path, and never answers where the path says so."""
    if "hang" in path:
        time.sleep(2 * PATIENCE)
    if "slow" in path:
        time.sleep(2.5)
    return 200, {"Connection": "close"}, b""


@dataclass(frozen=True)
class Front:
    """The balancer before one replica."""

    port: int
    directory: Path
    replica: contextlib.ExitStack

    def send(self, path: str, body: bytes = b"", **headers: str) -> http.client.HTTPResponse:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        made = http.client.HTTPConnection(HOST, self.port, timeout=PATIENCE)
        with contextlib.closing(made) as connection:
            connection.request("POST" if body else "GET", path, body or None, named)
            with connection.getresponse() as reply:
                reply.read()
                return reply

    def logged(self, request_id: str) -> dict[str, Any]:
        """The line of this request, which is written after its reply."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            for line in (self.directory / "haproxy.log").read_text("utf-8").splitlines():
                if f'"request_id":"{request_id}"' in line:
                    entry: dict[str, Any] = json.loads(line)
                    return entry
            time.sleep(0.05)
        raise AssertionError(f"no line of {request_id}")


@contextlib.contextmanager
def started(directory: Path, **options: Any) -> Iterator[Front]:
    with contextlib.ExitStack() as replica:
        ports = [int(replica.enter_context(http_stub(everything)).rpartition(":")[2])]
        with balancer(ports, directory, **options) as proxy:
            yield Front(proxy.port, directory, replica)


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    """With a certificate for 127.0.0.1 that it signed itself."""
    directory = tmp_path_factory.mktemp("haproxy")
    key, certificate = directory / "key", directory / "certificate"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=here"
    options = ("-addext", f"subjectAltName=IP:{HOST}", "-keyout", key, "-out", certificate)
    ran([*command.split(), *options])
    both = directory / "tls.pem"
    both.write_text(certificate.read_text() + key.read_text())
    settings = {"PADDLEPOOL_TLS_CERTIFICATE": str(both), "PADDLEPOOL_TIMEOUT_DEFAULT_MS": "300"}
    with started(directory, environment=settings) as running:
        yield running


@needs_haproxy
@pytest.mark.slow
def test_what_belongs_to_one_replica_is_not_found_however_it_is_spelt(front: Front) -> None:
    got = {path: front.send(path).status for path in (*OF_ONE, "/sentiment")}
    assert got == dict.fromkeys(OF_ONE, 404) | {"/sentiment": 200}


@needs_haproxy
@pytest.mark.slow
def test_a_replica_that_hangs_keeps_a_request_until_its_deadline(front: Front) -> None:
    """And two seconds more, wherever the request says it; it is not asked for again.

    A deadline that HAProxy cannot read does not cut the request short.
    """
    # They end one after another: HAProxy drops a log line while another thread writes one.
    cases = {
        "query": ("/hang?timeout_ms=200", b"picture"),
        "text": ("/hang", b'{"text": "a", "parameters": {"timeout_ms": 400}}'),
        "member": ("/hang", b'{"image": "a", "timeout_ms": 1500}'),
        "tensor": ("/v2/models/hang/infer", b'{"inputs": [], "parameters": {"timeout": 600000}}'),
        "default": ("/v2/models/hang/infer", b'{"inputs": [], "parameters": {"timeout": 0}}'),
    }

    def send(name: str) -> tuple[int, float]:
        began = time.monotonic()
        return front.send(*cases[name], X_Request_ID=name).status, time.monotonic() - began

    with ThreadPoolExecutor() as pool:
        compressed = pool.submit(front.send, "/slow?timeout_ms=1", b"gzip", Content_Encoding="gzip")
        results = dict(zip(cases, pool.map(send, cases), strict=True))
        assert compressed.result().status == 200
    assert {name: status for name, (status, _) in results.items()} == dict.fromkeys(cases, 504)
    assert all(2 < seconds < 4 for _, seconds in results.values()), results
    assert results["member"][1] > 3, results
    assert {front.logged(name)["retries"] for name in cases} == {"0"}


@needs_haproxy
@pytest.mark.slow
def test_each_reply_has_an_id_and_a_line_in_the_log(front: Front) -> None:
    """The client's id where the server would take it; else a new one, also on a refusal."""
    assert front.send('/a"b?secret', X_Request_ID="mine-1").headers["X-Request-ID"] == "mine-1"
    line = front.logged("mine-1")
    assert (line["path"], line["status"], line["replica"]) == ('/a"b', 200, "replica1")
    assert {"queue_ms", "connect_ms", "reply_ms", "total_ms", "retries"} <= set(line)
    new = front.send("/metrics", X_Request_ID="no good").headers["X-Request-ID"]
    assert front.logged(new)["status"] == 404


@needs_haproxy
@pytest.mark.slow
def test_it_speaks_tls_with_the_certificate_it_was_given(front: Front) -> None:
    context = ssl.create_default_context(cafile=front.directory / "certificate")
    made = http.client.HTTPSConnection(HOST, front.port + 1, timeout=PATIENCE, context=context)
    with contextlib.closing(made) as connection:
        connection.request("GET", "/sentiment")
        with connection.getresponse() as reply:
            assert reply.status == 200


@needs_haproxy
@pytest.mark.slow
def test_without_a_replica_its_own_503_has_an_id(tmp_path: Path) -> None:
    with started(tmp_path) as front:
        front.replica.close()
        reply = front.send("/sentiment", X_Request_ID="mine-2")
        assert (reply.status, reply.headers["X-Request-ID"]) == (503, "mine-2")
        assert front.logged("mine-2")["status"] == 503


@needs_haproxy
@pytest.mark.slow
def test_an_address_that_asks_too_often_gets_429(tmp_path: Path) -> None:
    with started(tmp_path, environment={"PADDLEPOOL_ADDRESS_REQUESTS": "9"}) as front:
        got = [front.send("/sentiment").status for _ in range(12)]
    assert (got[0], got[-1]) == (200, 429)


@needs_haproxy
@pytest.mark.slow
def test_a_connection_beyond_the_limit_of_an_address_is_closed(tmp_path: Path) -> None:
    with started(tmp_path, environment={"PADDLEPOOL_ADDRESS_CONNECTIONS": "2"}) as front:
        held = [held_connection(front.port) for _ in range(2)]
        with pytest.raises(ConnectionError):
            front.send("/sentiment")
        for connection in held:
            connection.close()


def held_connection(port: int) -> http.client.HTTPConnection:
    """Open a connection and leave it open; one that was closed before may still be counted."""
    connection = http.client.HTTPConnection(HOST, port, timeout=PATIENCE)
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            connection.request("GET", "/sentiment")
            assert connection.getresponse().read() == b""
            return connection
        except ConnectionError:
            connection.close()
            if time.monotonic() > deadline:
                raise


@needs_haproxy
@pytest.mark.slow
def test_probes_are_not_logged_and_a_reply_names_its_replica(front: Front) -> None:
    """Nor are the health checks and scrapes of its own port."""
    text = (front.directory / "haproxy.cfg").read_text("utf-8")
    *_, own_port = re.findall(rf"bind {HOST}:(\d+)", text)
    with urllib.request.urlopen(f"http://{HOST}:{own_port}/live", timeout=PATIENCE) as reply:
        assert reply.status == 200
    front.send("/v2/health/ready", X_Request_ID="probe")
    reply = front.send("/sentiment", X_Request_ID="after-the-probes")
    assert reply.headers["X-Replica"] == front.logged("after-the-probes")["replica"] == "replica1"
    log = (front.directory / "haproxy.log").read_text("utf-8")
    assert "Connect from" not in log
    assert '"probe"' not in log


def test_what_the_balancer_says_by_itself_is_in_the_servers_words() -> None:
    """Its 429, 503 and 504 have the codes of docs/errors.md."""
    for name, code in (
        ("429.json", "quota_exceeded"),
        ("503.http", "overloaded"),
        ("504.http", "deadline_exceeded"),
    ):
        file = CONFIGURATION.with_name(name).read_text("utf-8")
        problem = json.loads(file[file.index("{") :])
        assert (problem["status"], problem["code"]) == (int(name[:3]), code)


OF_ONE = (
    *("/metrics", "/%6Detrics", "/metrics?a=b"),
    *("/v2/repository/index", "/v2/%72epository/index", "/%762/repository/index"),
)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "where",
    [
        pytest.param("proxy", marks=needs_haproxy),
        pytest.param("ray", marks=pytest.mark.skipif(not RAY.exists(), reason="no .venv-ray")),
    ],
)
def test_nothing_is_lost_while_replicas_are_killed(where: str) -> None:
    """Two replicas, a kill every ten seconds, then a drain of each behind the balancer.

    Every answer is compared with the calm one.
    """
    options = (where, "--replicas", "2", "--seconds", "15")
    done = ran(
        [sys.executable, ROOT / "loadtest" / "replicas.py", *options], timeout=400, check=False
    )
    assert (done.returncode, "0 wrong" in done.stdout) == (0, True), done.stdout + done.stderr
