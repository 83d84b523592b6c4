"""The simulation of autoscalers: what the chart's policy rests on, and the documented table."""

import pytest
import yaml
from burst import POLICIES, VALUES, Policy, replay, table
from harness import ROOT

SHIPPED = yaml.safe_load(VALUES.read_text("utf-8"))


def test_the_documented_table_is_what_it_says() -> None:
    text = (ROOT / "docs" / "orchestration.md").read_text("utf-8")
    assert table(SHIPPED, rate=12.2, start=15) in text


def test_what_follows_for_the_chart_holds_for_other_rates_and_starts() -> None:
    """Queue and CPU together refuse no more than either alone."""
    for rate, start in ((12.2, 15), (12.2, 60), (516, 30)):
        cpu, queue, both = (
            replay(policy, SHIPPED, rate=rate, start=start).refused for policy in POLICIES.values()
        )
        assert both <= cpu < queue


def test_without_scaling_what_two_replicas_cannot_answer_is_refused() -> None:
    """In half an hour of twice what they answer, among 22 minutes of half of it."""
    found = replay(Policy(cpu=False, queue=False), SHIPPED, rate=10, start=15)
    assert (found.most, found.hours) == (2, 0)
    assert found.refused == pytest.approx(1800 / (2 * 1800 + 1320 / 2), abs=0.01)
