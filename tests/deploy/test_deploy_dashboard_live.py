"""The dashboard against the real thing: this server, scraped by a real Prometheus."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tests.deploy.conftest import prometheus_scraping

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
    script: Callable[[str], ModuleType],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every expression of every panel is answered with at least one finite number."""
    monkeypatch.setenv("PADDLEPOOL_PROVE_GROUPS", "started")
    monkeypatch.setenv("PADDLEPOOL_SHADOW_FRACTION", "1")
    monkeypatch.setenv("PADDLEPOOL_SHADOW_GROUPS", "native")
    harness, inputs = script("loadtest/harness.py"), script("loadtest/inputs.py")
    check = script("deploy/check_dashboard.py").main
    picture = inputs.draw_picture(320, 240, seed=1).data
    text = json.dumps({"text": inputs.SENTENCES[0]}).encode()
    with (
        harness.running_server() as server,
        prometheus_scraping(f"127.0.0.1:{server.port}", tmp_path / "prometheus") as prometheus,
    ):
        host = f"http://127.0.0.1:{server.port}"
        give_up = time.monotonic() + WAIT_SECONDS
        code = 2
        # Each round is work for both models and a few scrapes; rates need two of them.
        while code != 0 and time.monotonic() < give_up:
            post(f"{host}/segment?output=mask&timeout_ms=30000", picture, "image/jpeg")
            post(f"{host}/sentiment", text, "application/json")
            code = check(["--prometheus", prometheus, *WITHOUT_BALANCER])
            printed = capsys.readouterr().out
            time.sleep(1.0)  # an idle moment: replays and proofs wait for one
    assert code == 0, printed
