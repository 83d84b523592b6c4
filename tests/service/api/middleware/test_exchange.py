"""The outermost layer: ids, headers, log lines and durations."""

import io
import json
import logging
import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from paddlepool.observability.log import JsonFormatter
from paddlepool.settings.server import Settings
from tests.service.api.fakes import Client, make_app

SECRET = "correct horse battery staple"


@pytest.mark.parametrize("offered", ["a", "A-z_0.9", "x" * 64])
def test_a_well_formed_request_id_is_kept(client: Client, offered: str) -> None:
    response = client.get("/v2/health/live", headers={"X-Request-ID": offered})
    assert response.headers["x-request-id"] == offered


@pytest.mark.parametrize("offered", ["", "x" * 65, "a b", "a\u00e9", "a;b", '"'])
def test_any_other_request_id_is_replaced(client: Client, offered: str) -> None:
    headers = {"X-Request-ID": offered.encode("latin-1")}
    response = client.get("/v2/health/live", headers=headers)
    assert re.fullmatch("[0-9a-f]{16}", response.headers["x-request-id"])


@pytest.mark.parametrize("path", ["/v2/health/live", "/nothing", "/docs", "/info", "/sentiment"])
def test_every_reply_forbids_guessing_its_type(client: Client, path: str) -> None:
    response = client.get(path)
    assert response.headers["x-content-type-options"] == "nosniff"
    assert "server" not in response.headers


def logged(client: Client, caplog: pytest.LogCaptureFixture, *requests: tuple) -> list[dict]:  # type: ignore[type-arg]
    with caplog.at_level(logging.INFO, "paddlepool.access"):
        client.send_all(requests)
    formatter = JsonFormatter()
    return [
        json.loads(formatter.format(record))
        for record in caplog.records
        if record.name == "paddlepool.access"
    ]


def test_a_request_is_one_log_line(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    headers = {"X-Request-ID": "abc"}
    [line] = logged(client, caplog, ("GET", "/v2/models/m1?x=1", {"headers": headers}))
    assert caplog.text.splitlines()[-1].split() == ["INFO", "paddlepool.access::0", "request"]
    assert line.pop("milliseconds") >= 0
    assert line.pop("time")
    assert line == {
        "level": "info",
        "logger": "paddlepool.access",
        "event": "request",
        "request_id": "abc",
        "method": "GET",
        "route": "/v2/models/{model}",
        "status": 200,
    }


def test_probes_and_scrapes_are_logged_only_if_they_fail(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """They would be half of the log; the metrics count them all."""
    probes = ("/v2/health/live", "/v2/health/ready", "/v2/models/m1/ready", "/metrics")
    assert logged(client, caplog, *(("GET", path, {}) for path in probes)) == []
    exposition = client.services.metrics.render()[0]
    assert all(b'route="%b",status="200"' % path.encode() in exposition for path in probes[:2])
    client.services.lifecycle.draining = True
    [line] = logged(client, caplog, ("GET", "/v2/health/ready", {}))
    assert line["status"] == 503


@pytest.mark.parametrize("name", ["", "eu-1.a"])
def test_a_reply_names_its_replica_if_it_has_a_name(name: str) -> None:
    """The host's name is for the log alone: outsiders need not know it."""
    client = Client(make_app(settings=Settings(replica=name)))
    for path in ("/v2/health/live", "/nothing"):
        assert client.get(path).headers.get("x-replica", "") == name
    line = json.loads(JsonFormatter(replica=name).format(logging.makeLogRecord({})))
    assert line.get("replica", "") == name


def test_nothing_a_client_wrote_is_in_the_log(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    lines = logged(
        client,
        caplog,
        ("POST", "/sentiment", {"json": {"text": SECRET}}),
        ("GET", f"/{SECRET}", {}),
        ("GET", "/info", {"params": {"q": SECRET}}),
        ("PURGE" + "X" * 50, "/info", {}),
        ("POST", "/sentiment", {"files": {"file": (SECRET, b"x")}}),
        ("GET", "/info", {"headers": {"User-Agent": SECRET, "X-Request-ID": SECRET}}),
    )
    assert len(lines) == 6
    assert SECRET not in json.dumps(lines)
    assert lines[3]["method"] == "OTHER"


def test_a_log_line_cannot_be_forged() -> None:
    """Line breaks of any kind are escaped; what cannot be encoded, too."""
    record = logging.makeLogRecord({"msg": 'a\r\nb\u2028c\ud800"', "name": "x\n", "extra": "y\n"})
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    handler.emit(record)
    [line] = stream.getvalue().splitlines()
    assert line.isascii()
    assert json.loads(line)["event"] == 'a\r\nb\u2028c\ud800"'
    assert json.loads(line)["extra"] == "y\n"


def test_durations_are_counted_by_route_method_and_status(client: Client) -> None:
    """A path without a route, and a method without one, are `unmatched`."""
    client.send_all(
        [
            ("GET", "/v2/models/m1", {}),
            ("GET", "/v2/models/other", {}),
            ("PUT", "/v2/models/m1", {}),
            ("GET", "/nothing", {}),
            ("POST", "/sentiment", {"content": b"x" * 300_000}),
        ]
    )
    counts = {
        (s.labels["route"], s.labels["method"], s.labels["status"]): s.value
        for family in text_string_to_metric_families(client.services.metrics.render()[0].decode())
        for s in family.samples
        if s.name == "paddlepool_request_duration_seconds_count" and s.value
    }
    assert counts == {
        ("/v2/models/{model}", "GET", "200"): 1,
        ("/v2/models/{model}", "GET", "404"): 1,
        ("unmatched", "PUT", "405"): 1,
        ("unmatched", "GET", "404"): 1,
        ("/sentiment", "POST", "413"): 1,
    }


def test_a_draining_server_asks_its_clients_to_reconnect(client: Client) -> None:
    """Otherwise a kept connection is closed under a request on its way."""
    assert "connection" not in client.get("/v2/health/live").headers
    client.services.lifecycle.draining = True
    assert client.get("/v2/health/live").headers["connection"] == "close"
