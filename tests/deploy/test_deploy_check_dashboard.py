"""The script that asks a Prometheus every question of the dashboard."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.http_stub import Answer, Reply, as_json

DASHBOARD = {
    "templating": {"list": [{"name": "model", "allValue": ".*"}]},
    "panels": [
        {"title": "Rate", "targets": [{"expr": 'rate(a{m=~"$model"}[$__rate_interval])'}]},
        {"title": "Row", "panels": [{"title": "Drift", "targets": [{"expr": "drift"}]}]},
    ],
}
Check = Callable[..., int]


def prometheus(values: dict[str, list[str]]) -> Answer:
    """A Prometheus that knows these expressions and refuses every other."""

    def answer(path: str, body: bytes) -> Reply:
        del body
        expression = parse_qs(urlsplit(path).query)["query"][0]
        if expression not in values:
            return as_json({"status": "error", "error": f"cannot parse {expression}"}, 400)
        result = [{"metric": {}, "value": [0, value]} for value in values[expression]]
        return as_json({"status": "success", "data": {"result": result}})

    return answer


@pytest.fixture
def check(
    script: Callable[[str], ModuleType], stub: Callable[[Answer], str], tmp_path: Path
) -> Check:
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
