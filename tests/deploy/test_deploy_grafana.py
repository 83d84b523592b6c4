"""The provisioned dashboard: up to date, of Grafana's own shape, and about metrics that exist."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.deploy.conftest import Script
from tests.ran import ROOT

GRAFANA = ROOT / "deploy" / "grafana"
RULES = ROOT / "deploy" / "prometheus" / "rules"
DASHBOARD = json.loads((GRAFANA / "dashboards" / "paddlepool.json").read_text("utf-8"))
FAMILY = re.compile(r"(?<![\w:])paddlepool_[a-z_]+(?![\w:]|\()")


def expressions() -> Iterator[str]:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            yield target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]


def rules() -> list[dict[str, Any]]:
    files = [yaml.safe_load(path.read_text("utf-8")) for path in sorted(RULES.glob("*.yml"))]
    return [rule for file in files for group in file["groups"] for rule in group["rules"]]


def documented() -> set[str]:
    """Families of docs/metrics.md, which a test of its own compares with the server's."""
    rows = re.findall(
        r"^\| `(paddlepool_\w+)` \| (\w+) \|", (ROOT / "docs/metrics.md").read_text("utf-8"), re.M
    )
    metrics = {name for name, _ in rows}
    for name, kind in rows:
        if kind == "histogram":
            metrics |= {f"{name}_{suffix}" for suffix in ("bucket", "count", "sum")}
    return metrics


def test_the_dashboard_is_what_the_generator_writes(script: Script) -> None:
    """`python deploy/grafana/generate.py` changes nothing."""
    written = (GRAFANA / "dashboards" / "paddlepool.json").read_text("utf-8")
    assert script("deploy/grafana/generate.py").text() == written


def test_every_metric_asked_for_exists() -> None:
    """In panels, variables and rules; recorded series are those that a rule records."""
    text = " ".join([*expressions(), *(rule["expr"] for rule in rules())])
    assert set(FAMILY.findall(text)) - documented() == set()
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    assert set(re.findall(r"\bjob_\w+:\w+:\w+", text)) <= recorded


def test_every_sum_of_a_panel_keeps_the_namespace() -> None:
    """A healthy release must not hide a failing one; docs/monitoring.md names the exception."""
    sums = {
        (panel["title"], aggregation)
        for panel in DASHBOARD["panels"]
        for target in panel.get("targets", [])
        for aggregation in re.findall(
            r"\b(?:sum|min|max|avg|count)\b(?: by)? ?\(([^()]*)", target["expr"]
        )
    }
    without = {title for title, labels in sums if not labels.startswith("namespace")}
    assert without == {"Predictor runs: $predictor"}


def test_every_field_is_one_that_grafana_knows() -> None:
    """Read through Grafana's own types and written again, nothing is lost."""
    models = pytest.importorskip("grafana_foundation_sdk.models.dashboard")
    from grafana_foundation_sdk.cog import plugins
    from grafana_foundation_sdk.cog.encoder import JSONEncoder

    plugins.register_default_plugins()
    again = json.loads(json.dumps(models.Dashboard.from_json(DASHBOARD), cls=JSONEncoder))
    assert list(lost(DASHBOARD, again)) == []


def lost(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Paths of what `before` holds and `after` does not."""
    if isinstance(before, dict):
        for key, value in before.items():
            if not isinstance(after, dict) or key not in after:
                yield f"{path}.{key}"
            else:
                yield from lost(value, after[key], f"{path}.{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (left, right) in enumerate(zip(before, after, strict=True)):
            yield from lost(left, right, f"{path}[{number}]")
    elif before != after:
        yield path


def test_every_query_asks_the_chosen_data_source() -> None:
    """A variable: an imported dashboard finds a Prometheus with any uid. Other variables come after
    it, because their values are asked there."""
    first, *others = DASHBOARD["templating"]["list"]
    assert (first["type"], first["query"]) == ("datasource", "prometheus")
    targets = [target for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]
    queries = [query for query in DASHBOARD["panels"] if query["type"] != "row"] + targets + others
    used = [(query["datasource"]["type"], query["datasource"]["uid"]) for query in queries]
    assert set(used) == {("prometheus", f"${{{first['name']}}}")}
    assert json.dumps(DASHBOARD).count('"datasource": {') == len(used)


def test_the_provisioned_data_source_is_the_default_and_knows_the_scrape_interval() -> None:
    """Grafana chooses it for the variable at first."""
    file = (GRAFANA / "provisioning" / "datasources" / "prometheus.yml").read_text("utf-8")
    (source,) = yaml.safe_load(file)["datasources"]
    assert (source["type"], source["isDefault"]) == ("prometheus", True)
    scrape = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text("utf-8"))
    assert source["jsonData"]["timeInterval"] == scrape["global"]["scrape_interval"]
