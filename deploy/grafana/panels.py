"""Builders for the dashboard: panels, variables, and the position of each panel."""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import Any

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
"""The variable that `data_source()` makes: an imported dashboard must find any Prometheus."""
WIDTH = 24

Json = dict[str, Any]
Target = tuple[str, str]
"""A PromQL expression and its legend."""


def rates(metric: str, labels: str, by: str, *, function: str = "rate", prefix: str = "") -> Target:
    """A counter's rate, one line for each namespace and value of the labels `by`."""
    legend = " ".join(f"{{{{{label}}}}}" for label in by.split(", "))
    expression = f"{function}({metric}{{{labels}}}[$__rate_interval])"
    return f"sum by (namespace, {by}) ({expression})", prefix + legend


increases = partial(rates, function="increase")
"""A counter's increase in each step, in lines as those of `rates`."""


def means(metric: str, labels: str, by: str) -> Target:
    """The mean of a histogram's values, in lines as those of `rates`."""
    total, legend = rates(f"{metric}_sum", labels, by)
    return f"{total} / {rates(f'{metric}_count', labels, by)[0]}", legend


def quantiles(metric: str, labels: str, by: str) -> list[Target]:
    """p50, p95 and p99 of a histogram, one line for each namespace and value of the labels `by`."""
    buckets, legend = rates(f"{metric}_bucket", labels, f"{by}, le")
    legend = legend.removesuffix("{{le}}")
    return [
        (f"histogram_quantile({q}, {buckets})", f"{{{{namespace}}}} {legend}p{round(100 * q)}")
        for q in (0.5, 0.95, 0.99)
    ]


def panel(kind: str, title: str, *targets: Target, width: int, text: str, **more: Any) -> Json:
    """One panel; `more` may hold unit, options, custom (field options), repeat, thresholds."""
    defaults: Json = {"unit": more.get("unit", "short"), "custom": more.get("custom", {})}
    if kind != "heatmap":
        defaults["min"] = 0
    if "thresholds" in more:
        steps = [{"color": colour, "value": value} for value, colour in more["thresholds"]]
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    built: Json = {
        "type": kind,
        "title": title,
        "description": text,
        "datasource": DATASOURCE,
        "gridPos": {"w": width, "h": more.get("height", 8), "x": 0, "y": 0},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": more.get("options", {}),
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": DATASOURCE,
                "expr": expression,
                "legendFormat": f"{{{{namespace}}}} {legend}",
                "range": not more.get("instant", False),
                "instant": bool(more.get("instant", False)),
                "format": "heatmap" if kind == "heatmap" else "time_series",
            }
            for number, (expression, legend) in enumerate(targets)
        ],
    }
    if "repeat" in more:
        built |= {"repeat": more["repeat"], "repeatDirection": "h", "maxPerRow": 4}
    return built


def lines(title: str, *targets: Target, stacked: bool = False, **more: Any) -> Json:
    custom: Json = {"lineWidth": 1, "fillOpacity": 30 if stacked else 5, "showPoints": "never"}
    custom["stacking"] = {"mode": "normal" if stacked else "none", "group": "A"}
    options = {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return panel("timeseries", title, *targets, custom=custom, options=options, **more)


def number(title: str, *targets: Target, text_mode: str = "value_and_name", **more: Any) -> Json:
    options: Json = {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "textMode": text_mode,
        "colorMode": "background",
        "graphMode": "none",
    }
    return panel("stat", title, *targets, options=options, instant=True, height=5, **more)


def data_source() -> Json:
    """The variable with the Prometheus that all queries ask; Grafana's default one at first."""
    return {
        "type": "datasource",
        "name": "datasource",
        "label": "Data source",
        "query": "prometheus",
    }


def variable(name: str, query: str) -> Json:
    return {
        "type": "query",
        "name": name,
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
        "sort": 1,
    }


def placed(sections: list[tuple[str, list[Json]]]) -> list[Json]:
    """All panels with their numbers and places: left to right, a new line when one is full."""
    numbers, panels, top = count(1), [], 0
    for title, members in sections:
        row = {"type": "row", "title": title, "id": next(numbers), "collapsed": False, "panels": []}
        panels.append(row | {"gridPos": {"w": WIDTH, "h": 1, "x": 0, "y": top}})
        top, left, tallest = top + 1, 0, 0
        for member in members:
            place = member["gridPos"]
            if left + place["w"] > WIDTH:
                top, left, tallest = top + tallest, 0, 0
            panels.append(member | {"id": next(numbers), "gridPos": place | {"x": left, "y": top}})
            left, tallest = left + place["w"], max(tallest, place["h"])
        top += tallest
    return panels
