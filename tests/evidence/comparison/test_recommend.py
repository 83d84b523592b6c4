"""Which group is recommended, why, and what making it the default one writes."""

import io
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlepool.cli import main
from paddlepool.contracts.errors import ConfigError
from paddlepool.evidence.comparison.measure import Load
from paddlepool.evidence.comparison.result import Comparison, GroupResult, group_results, recommend
from paddlepool.evidence.comparison.search import write_default_group
from paddlepool.evidence.verdict.proof import Runs
from paddlepool.models.repository.config import Budget, InstanceGroup, ModelConfig
from paddlepool.models.repository.layout import ModelFiles
from paddlepool.models.repository.selftest import SelfTest
from tests.engine.fakes import write_double

DEFAULT = GroupResult(
    group="main",
    backend="fake",
    threads=1,
    requests=8,
    p50_seconds=0.1,
    p95_seconds=0.2,
    max_abs_drift=0.0,
    mean_difference=0.0,
    agreement=1.0,
    budget=Budget(mean_difference=0.015, agreement=0.95),
    base=None,
    effective=None,
    reason="",
    resident_bytes=1,
    instances=2,
    concurrent_p50_seconds=0.1,
    concurrent_p95_seconds=0.2,
    concurrent_per_second=20.0,
)


OFFERED = ModelConfig(
    default_group="main",
    instance_group=tuple(
        InstanceGroup(name=name, backend="fake", **more)  # type: ignore[arg-type]
        for name, more in {
            "main": {},
            "spare": {},
            "quick": {},
            "low": {"budget": {"agreement": 0.9}},
            "shown": {"candidate": False},
        }.items()
    ),
)


def comparison(*others: dict[str, Any]) -> Comparison:
    groups = [replace(DEFAULT, **{"group": "spare"} | other) for other in others]
    return Comparison(
        model="double",
        version=1,
        weights_sha256="",
        machine="",
        cores=2.0,
        samples=("a",),
        default_group="main",
        agreement_name="IoU",
        groups=(DEFAULT, *groups),
        refused={},
        not_busy={},
    )


@pytest.mark.parametrize(
    ("other", "group", "reason"),
    [
        pytest.param(
            {"concurrent_per_second": 30.0, "mean_difference": 0.01},
            "spare",
            "1.50 times as fast as main on all cores, mean difference 1.0e-02, IoU 1.0000",
            id="faster, with the same answers",
        ),
        pytest.param(
            {"concurrent_per_second": 60.0, "mean_difference": 0.02},
            "main",
            "no other group with the same answers is 10% faster; spare would be faster, but its "
            "outputs differ by 0.02 on average, limit 0.015",
            id="other outputs",
        ),
        pytest.param(
            {"concurrent_per_second": None, "p50_seconds": 0.05},
            "spare",
            "2.00 times as fast as main with one request, mean difference 0.0e+00, IoU 1.0000",
            id="measured alone",
        ),
        pytest.param(
            {"concurrent_per_second": 30.0, "gain_low": 1.11, "gain_high": 1.6},
            "spare",
            "1.50 times as fast as main on all cores (1.11 to 1.60), mean difference 0.0e+00, IoU "
            "1.0000",
            id="clearly faster",
        ),
        pytest.param(
            {"concurrent_per_second": 30.0, "gain_low": 1.09, "gain_high": 1.6},
            "main",
            "no other group with the same answers is 10% faster; spare was 1.50 times as fast "
            "(1.09 to 1.60), which may be noise",
            id="perhaps faster",
        ),
    ],
)
def test_the_recommendation(other: dict[str, Any], group: str, reason: str) -> None:
    found = recommend(comparison(other), OFFERED)
    assert (found.group, found.reason) == (group, reason)


@pytest.mark.parametrize(
    ("figures", "chosen"),
    [
        ({"spare": (30.0, 0.1, 9), "quick": (29.0, 0.1, 2)}, "quick"),  # equals: less memory
        ({"spare": (30.0, 0.1, 2), "quick": (29.0, 0.05, 9)}, "quick"),  # equals: sooner alone
        ({"spare": (29.0, 0.1, 9), "low": (30.0, 0.1, 1)}, "spare"),  # equals: full precision
        ({"spare": (25.0, 0.1, 1), "low": (30.0, 0.1, 9)}, "low"),
        ({"spare": (21.9, 0.1, 1), "quick": (21.0, 0.1, 1)}, "main"),  # nothing gains a tenth
    ],
)
def test_the_rule_of_auto_chooses_among_several(
    figures: dict[str, tuple[float, float, int]], chosen: str
) -> None:
    others = [
        {
            "group": name,
            "concurrent_per_second": rate,
            "p50_seconds": seconds,
            "resident_bytes": memory,
        }
        for name, (rate, seconds, memory) in figures.items()
    ]
    assert recommend(comparison(*others), OFFERED).group == chosen


@pytest.mark.parametrize(("pairs", "interval"), [(8, (2.0, 2.0)), (7, (None, None))])
@pytest.mark.parametrize("busy", [True, False])
def test_the_gain_has_an_interval(
    double: ModelFiles, busy: bool, pairs: int, interval: tuple[float | None, float | None]
) -> None:
    """Of slices on all cores if these were measured, else of single runs."""
    times = {"main": ([0.3, 0.1] * 4)[:pairs], "spare": ([0.15, 0.05] * 4)[:pairs]}
    runs = {
        name: Runs(seconds=[1.0] if busy else own, outputs=[{"y": np.zeros(1)}])
        for name, own in times.items()
    }
    loads = {name: Load(instances=1, seconds=own, slices=own) for name, own in times.items()}
    rows = group_results(
        double.config,
        runs,
        loads=loads if busy else {},
        resident={"main": 1, "spare": 1},
        task=None,
        tolerance=1.0,
    )
    spare = next(row for row in rows if row.group == "spare")
    assert (spare.gain_low, spare.gain_high) == pytest.approx(interval)


def test_a_group_that_is_no_candidate_is_not_recommended() -> None:
    found = recommend(comparison({"group": "shown", "concurrent_per_second": 60.0}), OFFERED)
    assert found.group == "main"
    assert found.reason.endswith("shown would be faster, but config.toml sets candidate = false")


def tuning(root: Path) -> list[str]:
    """The command for all groups of `double`, which is written."""
    write_double(root)
    return ["tune", "double", "--repository", str(root), "--groups", "all"]


def test_nothing_is_recommended_where_nothing_is_fast_enough(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each group's p95 is said, and the exit code tells; the default group is no answer either."""
    slow = {"concurrent_per_second": 60.0, "concurrent_p95_seconds": 0.5}
    found = recommend(comparison(slow), OFFERED, p95_seconds=0.1)
    assert not found.fit
    assert found.reason == (
        "main: its p95 is 200 ms, the limit is 100; spare: its p95 is 500 ms, the limit is 100"
    )
    monkeypatch.setattr("paddlepool.cli.tune.compare", lambda *_, **__: comparison(slow))
    assert main([*tuning(tmp_path), "--yes", "--p95", "100"]) == 1
    assert "Nothing is fast enough: main: its p95 is 200 ms" in capsys.readouterr().out


def test_each_group_is_judged_by_its_own_budget() -> None:
    """One without a limit on a measure is not held to it, but for what is no number."""
    faster: dict[str, Any] = {"concurrent_per_second": 60.0, "mean_difference": 0.5}
    loose = Budget(mean_difference=1.0, agreement=0.5)
    by_agreement = faster | {"budget": Budget(agreement=0.9)}
    for other, group in (
        (faster, "main"),
        (faster | {"budget": loose, "agreement": 0.6}, "spare"),
        (by_agreement, "spare"),
        (by_agreement | {"mean_difference": np.inf}, "main"),
    ):
        assert recommend(comparison(other), OFFERED).group == group, other


def test_the_mean_difference_is_that_of_the_budgets(double: ModelFiles) -> None:
    """The self-test measures the same; a group without a budget is held to the tolerance."""
    golden = {"y": np.array([[0.0, 8.0]], np.float32), "z": np.zeros((1, 1), np.float32)}
    other = {"y": np.array([[0.0, 8.8]], np.float32), "z": np.zeros((1, 1), np.float32)}
    runs = {
        "main": Runs(seconds=[0.1], outputs=[golden]),
        "spare": Runs(seconds=[0.1], outputs=[other]),
    }
    resident = {"main": 1, "spare": 1}
    rows = group_results(
        double.config, runs, loads={}, resident=resident, task=None, tolerance=0.25
    )
    by_name = {row.group: row.mean_difference for row in rows}
    assert by_name == {"main": 0.0, "spare": pytest.approx(0.4)}
    test = SelfTest(inputs={}, outputs=golden, tolerance=1.0)
    assert by_name["spare"] == test.quality(other).mean_difference
    assert [row.budget for row in rows] == [Budget(mean_difference=0.25)] * 2


CONFIG = """\
default_group = "main"  # the one that answers

[[instance_group]]
name = "main"
backend = "fake"
count = 4

[[instance_group]]
name = "spare"
backend = "fake"  # another one
threads = 2
start = "on_demand"
"""


def test_the_chosen_group_becomes_the_default_one(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(CONFIG, "utf-8")
    write_default_group(path, "spare")
    text = path.read_text("utf-8")
    assert "# the one that answers" in text
    assert "# another one" in text
    assert tomllib.loads(text) == {
        "default_group": "spare",
        "instance_group": [
            {"name": "main", "backend": "fake", "count": 4, "start": "on_demand"},
            {"name": "spare", "backend": "fake", "threads": 2, "count": 2},
        ],
    }
    with pytest.raises(ConfigError, match="lists no group 'gone'"):
        write_default_group(path, "gone")


def test_the_chosen_group_starts_on_demand_as_the_default_one_did(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(CONFIG.replace("count = 4\n", 'count = 4\nstart = "on_demand"\n'), "utf-8")
    write_default_group(path, "spare")
    assert [group["start"] for group in tomllib.loads(path.read_text())["instance_group"]] == [
        "on_demand",
        "on_demand",
    ]


def test_it_is_written_only_when_agreed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked at a terminal, with --yes without asking, and never where nobody could answer."""
    arguments = tuning(tmp_path)
    path = tmp_path / "double" / "config.toml"
    before = path.read_text("utf-8")
    faster = comparison({"concurrent_per_second": 60.0})
    monkeypatch.setattr("paddlepool.cli.tune.compare", lambda *_, **__: faster)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert main(arguments) == 0
    assert "There is no terminal to ask: use --yes" in capsys.readouterr().out
    assert main([*arguments, "--dry-run"]) == 0
    assert path.read_text("utf-8") == before
    assert main([*arguments, "--yes"]) == 0
    printed = capsys.readouterr().out
    assert "Recommended: spare: 3.00 times as fast as main on all cores" in printed
    assert tomllib.loads(path.read_text("utf-8"))["default_group"] == "spare"
