"""The units for systemd."""

import configparser
import re
from pathlib import Path

from paddlepool.settings.server import Settings
from tests.deploy.conftest import tool
from tests.ran import ran

UNITS = Path(__file__).resolve().parents[2] / "deploy" / "systemd"


def test_the_unit_waits_for_the_drain_and_names_settings() -> None:
    """A variable that is no setting would be reported and ignored."""
    text = (UNITS / "paddlepool@.service").read_text("utf-8")
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.read_string(text)
    service = unit["Service"]
    assert float(service["TimeoutStopSec"]) >= Settings().drain_timeout_seconds + 5
    assert (service["Type"], service["Sockets"]) == ("notify", "paddlepool.socket")
    named = set(re.findall(r"PADDLEPOOL_(\w+)=", text))
    assert named, "the unit sets nothing"
    assert {name.lower() for name in named} <= set(Settings.model_fields)


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    """With a program at the place that they name."""
    verify = tool("systemd-analyze", "Debian: apt-get install systemd")
    for file in UNITS.iterdir():
        text = file.read_text("utf-8")
        text = text.replace("/opt/paddlepool/.venv/bin/paddlepool", "/bin/true")
        (tmp_path / file.name).write_text(text.replace("/opt/paddlepool", "/"))
    (tmp_path / "paddlepool@main.service").symlink_to("paddlepool@.service")
    units = [tmp_path / "paddlepool.socket", tmp_path / "paddlepool@main.service"]
    done = ran([verify, "--man=no", "verify", *units], check=False)
    lines = [line for line in done.stderr.splitlines() if "paddlepool" in line]
    assert lines == []
