"""The dashboard against the real thing: this server, scraped by a real Prometheus."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
# Replays and proofs run in idle moments, and on a busy machine those are rare.
WAIT_SECONDS = 600.0
START_SECONDS = 60.0
LISTENING = re.compile(r'"Listening on" address=(127\.0\.0\.1:\d+)')


@contextmanager
def prometheus_scraping(target: str, directory: Path) -> Iterator[str]:
    """Debian's Prometheus with our configuration, every second instead of every ten."""
    tool = shutil.which("prometheus")
    if tool is None:
        pytest.skip("prometheus is not installed (Debian: apt-get install prometheus)")
    shutil.copytree(ROOT / "deploy" / "prometheus", directory, dirs_exist_ok=True)
    file = directory / "prometheus.yml"
    config = yaml.safe_load(file.read_text("utf-8"))
    config["global"] = {
        "scrape_interval": "1s",
        "scrape_timeout": "1s",
        "evaluation_interval": "1s",
    }
    ours = next(each for each in config["scrape_configs"] if each["job_name"] == "paddlepool")
    del ours["dns_sd_configs"]
    ours["static_configs"] = [{"targets": [target]}]
    config["scrape_configs"] = [ours]
    file.write_text(yaml.safe_dump(config))
    command = [tool, f"--config.file={file}", f"--storage.tsdb.path={directory / 'data'}"]
    with (directory / "log").open("w") as log:
        server = subprocess.Popen(
            [*command, "--web.listen-address=127.0.0.1:0"], stdout=log, stderr=subprocess.STDOUT
        )
    try:
        yield f"http://{address_in(directory / 'log')}"
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(START_SECONDS)


def address_in(log: Path) -> str:
    """The one that the system gave to Prometheus."""
    give_up = time.monotonic() + START_SECONDS
    while (found := LISTENING.search(log.read_text("utf-8"))) is None:
        assert time.monotonic() < give_up, log.read_text("utf-8")
        time.sleep(0.05)
    return found[1]


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
    run, inputs = script("loadtest/run.py"), script("loadtest/inputs.py")
    check = script("deploy/check_dashboard.py").main
    picture = inputs.draw_picture(320, 240, seed=1).data
    text = json.dumps({"text": inputs.SENTENCES[0]}).encode()
    with (
        run.own_server(tmp_path / "server.log") as host,
        prometheus_scraping(host.removeprefix("http://"), tmp_path / "prometheus") as prometheus,
    ):
        give_up = time.monotonic() + WAIT_SECONDS
        code = 2
        # Each round is work for both models and a few scrapes; rates need two of them.
        while code != 0 and time.monotonic() < give_up:
            post(f"{host}/segment?output=mask&timeout_ms=30000", picture, "image/jpeg")
            post(f"{host}/sentiment", text, "application/json")
            code = check(["--prometheus", prometheus])
            printed = capsys.readouterr().out
            time.sleep(1.0)  # an idle moment: replays and proofs wait for one
    assert code == 0, printed
