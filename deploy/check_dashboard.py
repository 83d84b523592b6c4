"""Run every query of the dashboard on a running Prometheus; fail if a result is empty."""

from __future__ import annotations

import argparse
import json
import math
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DASHBOARD = Path(__file__).resolve().parent / "grafana" / "dashboards" / "paddlepool.json"
# What Grafana puts in place of its variables when everything is chosen: "All" is `.*`, and the
# rate interval is four times the data source's scrape interval.
BUILT_IN = {"$__rate_interval": "40s", "$__interval": "10s"}


@dataclass(frozen=True, slots=True)
class Query:
    """The query of one target of a panel, with Grafana's variables filled in."""

    panel: str
    expression: str


def queries(dashboard: dict[str, Any]) -> Iterator[Query]:
    """Every expression of every panel, rows' panels included."""
    variables = {
        f"${variable['name']}": variable["allValue"]
        for variable in dashboard["templating"]["list"]
        if "allValue" in variable  # the data source has none, and no expression names it
    }
    pending = list(dashboard["panels"])
    while pending:
        panel = pending.pop(0)
        pending = panel.get("panels", []) + pending
        for target in panel.get("targets", []):
            expression = target["expr"]
            for name, value in {**BUILT_IN, **variables}.items():
                expression = expression.replace(name, value)
            yield Query(panel["title"], expression)


def fetch(prometheus: str, path: str, **parameters: str) -> Any:
    """Call Prometheus' HTTP API. Raises ValueError with its message for an error."""
    url = f"{prometheus.rstrip('/')}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
    try:
        with urllib.request.urlopen(url, timeout=10) as reply:  # noqa: S310 - the caller's own
            return json.load(reply)["data"]
    except urllib.error.HTTPError as error:
        raise ValueError(json.load(error)["error"]) from error


def count_series(prometheus: str, expression: str) -> int:
    """Series with a finite value. A quantile without observations is NaN and counts as empty."""
    values = (
        float(row["value"][1]) for row in fetch(prometheus, "query", query=expression)["result"]
    )
    return sum(math.isfinite(value) for value in values)


def main(arguments: list[str]) -> int:
    """Return 0 if no result is empty, 1 otherwise, 2 without a Prometheus."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prometheus", default="http://127.0.0.1:9090")
    parser.add_argument("--dashboard", type=Path, default=DASHBOARD)
    parser.add_argument(
        "--may-be-empty", action="append", default=[], metavar="TITLE", help="a panel to excuse"
    )
    args = parser.parse_args(arguments)
    dashboard = json.loads(args.dashboard.read_text("utf-8"))
    titles = {query.panel for query in queries(dashboard)}
    if unknown := sorted(set(args.may_be_empty) - titles):
        parser.error(f"no panel is called {', '.join(unknown)}")
    faults = 0
    for query in queries(dashboard):
        try:
            count = count_series(args.prometheus, query.expression)
            note = f"{count:4} series" if count else "      EMPTY"
        except ValueError as error:
            count, note = 0, f"    REFUSED {error}"
        except urllib.error.URLError as error:
            print(f"no answer from {args.prometheus}: {error.reason}", file=sys.stderr)
            return 2
        excused = not count and query.panel in args.may_be_empty and "EMPTY" in note
        faults += not count and not excused
        print(f"{note}{' (excused)' if excused else ''}  {query.panel}: {query.expression}")
    print(f"{faults} of {len(list(queries(dashboard)))} expressions without an answer")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
