"""The balancer's configuration, and replicas behind it that die."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from balanced import CONFIGURATION, local_configuration
from harness import ROOT

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


@needs_haproxy
@pytest.mark.slow
@pytest.mark.e2e
def test_nothing_is_lost_while_replicas_are_killed() -> None:
    """Two replicas, a kill every ten seconds, every answer compared with the calm one."""
    options = ("--replicas", "2", "--seconds", "15", "--only", "chaos")
    done = subprocess.run(
        [sys.executable, ROOT / "loadtest" / "replicas.py", *options],
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert (done.returncode, "0 wrong" in done.stdout) == (0, True), done.stdout + done.stderr
