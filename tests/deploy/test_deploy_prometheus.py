"""The scrape configuration and the rules, as promtool sees them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy" / "prometheus"
CASES = sorted((Path(__file__).parent / "prometheus").glob("*.yml"))


def promtool(*arguments: str) -> str:
    """Run promtool; what it printed when all is well. Skips where there is none."""
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("promtool is not installed (Debian: apt-get install prometheus)")
    done = subprocess.run([tool, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_configuration_is_valid_and_names_both_rule_files() -> None:
    """`promtool check config` reads the rule files that the configuration names, too."""
    assert "2 rule files found" in promtool("check", "config", str(DEPLOY / "prometheus.yml"))


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_rules_give_the_values_worked_out_by_hand(case: Path) -> None:
    """`promtool test rules`: recorded values, and every alert firing and staying silent."""
    assert "SUCCESS" in promtool("test", "rules", str(case))


def alert_names() -> list[str]:
    rules = (DEPLOY / "rules" / "alerts.yml").read_text("utf-8")
    return [line.split()[-1] for line in rules.splitlines() if "- alert:" in line]


def test_every_alert_is_documented() -> None:
    """docs/deployment.md names each alert, and no other."""
    page = (ROOT / "docs" / "deployment.md").read_text("utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `Paddlepool")]
    named = [cell.strip("`") for row in rows for cell in row.split("|")[1].strip().split(", ")]
    assert named == alert_names()


def test_every_alert_has_a_case() -> None:
    """No alert is shipped that nothing has seen firing."""
    alerts = alert_names()
    fired = (Path(__file__).parent / "prometheus" / "alerts.yml").read_text("utf-8")
    blocks = fired.split("- eval_time:")
    seen = {alert for alert in alerts for block in blocks if alert in block and "exp_l" in block}
    assert set(alerts) == seen
