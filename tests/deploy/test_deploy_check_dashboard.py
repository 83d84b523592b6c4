"""The script that asks a Prometheus every question of the dashboard, also against the real thing:
this server, scraped by a real Prometheus."""

import json
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from harness import running_server
from inputs import SENTENCES, draw_picture

from tests.deploy.conftest import Script, Stub, prometheus_scraping
from tests.http_stub import Reply, RequestOutput, as_json

DASHBOARD = {
    "templating": {"list": [{"name": "datasource"}, {"name": "model", "allValue": ".*"}]},
    "panels": [
        {"title": "Rate", "targets": [{"expr": 'rate(a{m=~"$model"}[$__rate_interval])'}]},
        {"title": "Row", "panels": [{"title": "Drift", "targets": [{"expr": "drift"}]}]},
    ],
}
Check = Callable[..., int]


def prometheus(values: dict[str, list[str]]) -> RequestOutput:
    """A Prometheus that knows these expressions and refuses every other."""

    def handle(path: str, body: bytes) -> Reply:
        del body
        expression = parse_qs(urlsplit(path).query)["query"][0]
        if expression not in values:
            return as_json({"status": "error", "error": f"cannot parse {expression}"}, 400)
        result = [{"metric": {}, "value": [0, value]} for value in values[expression]]
        return as_json({"status": "success", "data": {"result": result}})

    return handle


@pytest.fixture
def check(script: Script, stub: Stub, tmp_path: Path) -> Check:
    """Run the script on the small dashboard against such a Prometheus; its exit code."""
    file = tmp_path / "dashboard.json"
    file.write_text(json.dumps(DASHBOARD))
    main: Any = script("deploy/check_dashboard.py").main

    def run(values: dict[str, list[str]], *arguments: str) -> int:
        url = stub(prometheus(values))
        return int(main(["--prometheus", url, "--dashboard", str(file), *arguments]))

    return run


RATE = 'rate(a{m=~".*"}[40s])'


def test_answers_everywhere_are_success(check: Check, capsys: pytest.CaptureFixture[str]) -> None:
    """Grafana's variables are filled in, and panels inside rows are asked as well."""
    assert check({RATE: ["1", "2"], "drift": ["0"]}) == 0
    assert "2 series  Rate" in capsys.readouterr().out


@pytest.mark.parametrize("values", [[], ["NaN", "NaN"]], ids=["no series", "only NaN"])
def test_an_empty_panel_fails_unless_its_title_is_excused(check: Check, values: list[str]) -> None:
    """A quantile of no observations is NaN: it draws nothing and counts as nothing."""
    assert check({RATE: ["1"], "drift": values}) == 1
    assert check({RATE: ["1"], "drift": values}, "--may-be-empty", "Drift") == 0


def test_excuses_are_for_empty_panels_that_are_there(check: Check) -> None:
    """Neither for an expression that Prometheus refuses, nor for a panel that is gone."""
    assert check({RATE: ["1"]}, "--may-be-empty", "Drift") == 1
    with pytest.raises(SystemExit, match="2"):
        check({RATE: ["1"], "drift": ["1"]}, "--may-be-empty", "Gone")


# Replays and proofs run in idle moments, and on a busy machine those are rare.
WAIT_SECONDS = 600.0
WITHOUT_BALANCER = [
    *("--may-be-empty", "Replicas in use"),
    *("--may-be-empty", "Replies of the balancer"),
    *("--may-be-empty", "Sent again, and waiting"),
]


def post(url: str, body: bytes, content_type: str) -> None:
    request = urllib.request.Request(url, body, {"Content-Type": content_type})
    with urllib.request.urlopen(request, timeout=35) as reply:
        reply.read()


@pytest.mark.nightly
def test_no_panel_is_empty_when_both_models_are_used(
    script: Script,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every expression of every panel is answered with at least one finite number."""
    monkeypatch.setenv("PADDLEPOOL_PROVE_GROUPS", "started")
    monkeypatch.setenv("PADDLEPOOL_SHADOW_FRACTION", "1")
    monkeypatch.setenv("PADDLEPOOL_SHADOW_GROUPS", "native")
    check = script("deploy/check_dashboard.py").main
    picture = draw_picture(320, 240, seed=1).data
    text = json.dumps({"text": SENTENCES[0]}).encode()
    with (
        running_server() as server,
        prometheus_scraping(f"127.0.0.1:{server.port}", tmp_path / "prometheus") as prometheus,
    ):
        host = f"http://127.0.0.1:{server.port}"
        deadline = time.monotonic() + WAIT_SECONDS
        code = 2
        # Each round is work for both models and a few scrapes; rates need two of them.
        while code != 0 and time.monotonic() < deadline:
            post(f"{host}/segment?output=mask&timeout_ms=30000", picture, "image/jpeg")
            post(f"{host}/sentiment", text, "application/json")
            code = check(["--prometheus", prometheus, *WITHOUT_BALANCER])
            printed = capsys.readouterr().out
            time.sleep(1.0)  # an idle moment: replays and proofs wait for one
    assert code == 0, printed
