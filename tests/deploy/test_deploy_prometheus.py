"""The scrape configuration and the rules, as promtool and a real Prometheus see them."""

import re
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from paddlepool.observability.history import SECONDS
from tests.deploy.conftest import fetch, prometheus_scraping, promtool
from tests.ran import ROOT

DEPLOY = ROOT / "deploy" / "prometheus"
RULES = DEPLOY / "rules"
CASES = Path(__file__).parent / "prometheus"
ALERTS: Mapping[str, Mapping[str, Any]] = {
    rule["alert"]: rule
    for group in yaml.safe_load((RULES / "alerts.yml").read_text("utf-8"))["groups"]
    for rule in group["rules"]
}
FIRING: list[dict[str, Any]] = yaml.safe_load((CASES / "alerts.yml").read_text("utf-8"))


def test_the_configuration_is_valid_and_names_all_rule_files() -> None:
    """`promtool check config` reads the rule files that the configuration names, too."""
    assert "3 rule files found" in promtool("check", "config", str(DEPLOY / "prometheus.yml"))


def test_recorded_values_are_those_worked_out_by_hand() -> None:
    assert "SUCCESS" in promtool("test", "rules", str(CASES / "recording.yml"))


def with_release(series: str) -> str:
    """The series with the labels `job` and `namespace`; those that it names stay."""
    name, _, labels = series.rstrip("}").partition("{")
    release = {"job": "paddlepool", "namespace": "shop"}
    added = [f'{label}="{value}"' for label, value in release.items() if f"{label}=" not in labels]
    return f"{name}{{{','.join(filter(None, [labels, *added]))}}}"


def fired(alert: str, expected: Mapping[str, Any]) -> dict[str, Any]:
    """One firing alert as promtool expects it."""
    annotations = dict(ALERTS[alert]["annotations"]) | {"summary": expected["summary"]}
    annotations["runbook_url"] = annotations["runbook_url"].replace("{{ $externalURL }}", "")
    labels = {"job": "paddlepool", "namespace": "shop"} | expected["labels"]
    return {"exp_labels": labels, "exp_annotations": annotations}


def test_alerts_fire_on_their_trouble_and_stay_silent_beside_it(tmp_path: Path) -> None:
    """In the namespace that has the trouble."""
    tests = []
    for case in FIRING:
        checks = [
            {"eval_time": at, "alertname": alert} for alert, at in case.get("silent", {}).items()
        ]
        for alert, expected in case["fires"].items():
            several = [expected, expected["and"]] if "and" in expected else [expected]
            firing = [fired(alert, entry) for entry in several]
            checks.append({"eval_time": expected["at"], "alertname": alert, "exp_alerts": firing})
        series = [
            {"series": with_release(name), "values": values}
            for name, values in case["series"].items()
        ]
        test = {"name": case["name"], "interval": "10s", "input_series": series}
        tests.append(test | {"alert_rule_test": checks})
    files = [str(RULES / name) for name in ("recording.yml", "alerts.yml")]
    file = tmp_path / "alerts.yml"
    content = {"rule_files": files, "evaluation_interval": "30s", "tests": tests}
    file.write_text(yaml.safe_dump(content))
    assert "SUCCESS" in promtool("test", "rules", str(file))


def test_every_alert_is_documented_and_has_been_seen_firing() -> None:
    """docs/monitoring.md names each alert, and no other; so do the cases and the runbooks, to which
    the alerts lead."""
    page = (ROOT / "docs" / "monitoring.md").read_text("utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `Paddlepool")]
    named = [cell.strip("`") for row in rows for cell in row.split("|")[1].strip().split(", ")]
    assert named == list(ALERTS)
    assert {alert for case in FIRING for alert in case["fires"]} == set(ALERTS)
    runbooks = ROOT / "docs" / "runbooks"
    assert {path.stem for path in runbooks.iterdir()} == set(ALERTS)
    for alert, rule in ALERTS.items():
        assert rule["annotations"]["runbook_url"] == "{{ $externalURL }}" + f"/consoles/{alert}.md"
        page = (runbooks / f"{alert}.md").read_text("utf-8")
        assert page.startswith(f"# {alert}\n")
        assert re.findall("(?m)^## (.*)$", page) == ["Check", "Fix"]


def test_objectives_are_for_what_answers_with_a_model() -> None:
    """Every call of gRPC has the method POST; only inference counts."""
    pytest.importorskip("grpc")
    from paddlepool.service.grpc.messages import SERVICE, Messages
    from paddlepool.service.grpc.server import HEALTH

    names = Messages().pool.FindServiceByName(SERVICE).methods_by_name
    routes = {f"/{SERVICE}/{name}" for name in names} | {f"/{HEALTH}/Check", f"/{HEALTH}/Watch"}
    rules = (RULES / "recording.yml").read_text("utf-8")
    for other in re.findall('route!~"(.*?)"', rules):
        counted = {route for route in routes if not re.fullmatch(other, route)}
        assert counted == {f"/{SERVICE}/ModelInfer", f"/{SERVICE}/ModelStreamInfer"}


def test_objectives_lie_on_bounds_of_the_histogram() -> None:
    """A bucket that the server does not have would make the objective silent."""
    bounds = re.findall(r'le="([\d.]+)"', (RULES / "recording.yml").read_text("utf-8"))
    assert bounds
    assert {float(bound) for bound in bounds} <= set(SECONDS)


@pytest.mark.nightly
def test_an_outage_of_everything_alerts_with_the_published_address(tmp_path: Path) -> None:
    """The targets of a real Prometheus disappear with their containers, so that no `up` is 0. The
    pages that its alerts lead to it serves itself."""
    with prometheus_scraping(None, tmp_path) as prometheus:
        deadline = time.monotonic() + 60
        while True:
            alerts = fetch(prometheus, "alerts")["alerts"]
            names = {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}
            if "PaddlepoolAllDown" in names or time.monotonic() > deadline:
                break
            time.sleep(0.2)
        for alert, rule in ALERTS.items():
            page = rule["annotations"]["runbook_url"].replace("{{ $externalURL }}", prometheus)
            with urllib.request.urlopen(page, timeout=10) as reply:
                assert reply.read().startswith(f"# {alert}\n".encode())
    assert names == {"PaddlepoolAllDown"}
    (url,) = {alert["annotations"]["runbook_url"] for alert in alerts}
    assert url == "http://127.0.0.1:9090/consoles/PaddlepoolAllDown.md"
