"""The verdict about a new version: bounds that hold, looks that cost nothing, true reasons."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from paddlepool.contracts.status import TrialEvidence
from paddlepool.evidence.canary.verdict import (
    MAX_POINTS,
    Verdict,
    judge,
    look,
    lower_bound,
    summary,
    upper_bound,
    with_point,
)
from paddlepool.models.repository.config import PROMOTION_RISK, CanaryPolicy

POLICY = CanaryPolicy(requests=200, agreement=0.95, slower=1.25)
EQUAL = ((0.01, 0.01),) * 200


def evidence(agreeing: float, compared: int = 200, **facts: Any) -> TrialEvidence:
    full = TrialEvidence(compared=compared, agreement=agreeing, seconds=EQUAL)
    return replace(full, **facts)


@pytest.mark.parametrize("count", [1, 30, 200, 5000])
@pytest.mark.parametrize("risk", [0.05, 0.001])
def test_the_bound_of_a_version_that_always_agrees_is_the_binomial_one(
    count: int, risk: float
) -> None:
    assert lower_bound(1.0, count, risk) == pytest.approx(risk ** (1 / count))
    assert upper_bound(0.0, count, risk) == pytest.approx(1 - risk ** (1 / count))
    assert (lower_bound(0.0, count, risk), upper_bound(1.0, count, risk)) == (0.0, 1.0)


@pytest.mark.parametrize("expected", [0.5, 0.93, 0.99])
def test_a_bound_is_wrong_less_often_than_its_risk(expected: float) -> None:
    """Of labels, which agree or not, and of overlaps, which agree in part."""
    drawn = np.random.default_rng(7)
    labels = drawn.binomial(400, expected, 1000) / 400
    overlaps = drawn.beta(9 * expected, 9 * (1 - expected), (1000, 400)).mean(axis=1)
    for means in (labels, overlaps):
        wrong = sum(lower_bound(mean, 400, 0.05) > expected for mean in means)
        wrong += sum(upper_bound(mean, 400, 0.05) < expected for mean in means)
        assert wrong < 100


def test_without_a_request_nothing_is_known() -> None:
    assert (lower_bound(0.0, 0, 0.05), upper_bound(0.0, 0, 0.05)) == (0.0, 1.0)


@pytest.mark.parametrize("requests", [20, 22, 200, 1001])
def test_looks_double(requests: int) -> None:
    first = math.ceil(requests / 4)
    looks = {n: look(n, requests) for n in range(8 * first + 1)}
    planned = {first: -2, 2 * first: -1, 4 * first: 0, 8 * first: 1}
    assert {n: number for n, number in looks.items() if number is not None} == planned
    assert requests <= 4 * first < requests + 4


def test_a_version_that_agrees_is_promoted_at_the_first_full_look() -> None:
    for compared in range(200):
        assert judge(evidence(compared, compared), POLICY).promote is None
    verdict = judge(evidence(200), POLICY)
    assert verdict.promote
    assert verdict.reason == (
        "agreement 1.000 (0.974 to 1.000) in 200 requests, 1.00 times the run time "
        "(1.00 to 1.00, 200 pairs), 0 failures"
    )


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"agreement": 120.0}, "agreement 0.600 with the current version in 200 requests, at most"),
        (
            {"agreement": 195.0, "slices": {"sad": (12, 0.0), "happy": (188, 188.0)}},
            "of 12 answers 'sad', a share of 0.000 agrees, the limit is 0.5",
        ),
        ({"seconds": ((0.03, 0.01),) * 200}, "3.00 times the run time of the current version"),
        ({"errors": 1, "error": "output 'y' contains NaN"}, "1 failure: output 'y' contains NaN"),
    ],
    ids=["agreement", "one label", "time", "an error"],
)
def test_a_version_is_rejected_for_what_is_wrong_with_it(
    facts: dict[str, Any], reason: str
) -> None:
    verdict = judge(evidence(200, **facts), POLICY)
    assert verdict.promote is False
    assert verdict.reason.startswith(reason)


def test_a_clear_fault_is_found_after_a_quarter_of_the_requests() -> None:
    assert judge(evidence(25, 50), POLICY).promote is False
    assert judge(evidence(25, 49), POLICY).promote is None


@pytest.mark.parametrize(
    "facts",
    [
        {"agreement": 192.0},
        {"seconds": EQUAL[:7]},
        {"seconds": ((0.0125, 0.01), (0.013, 0.01)) * 100},
    ],
    ids=["agreement", "few times", "times"],
)
def test_what_is_not_proven_is_left_undecided(facts: dict[str, Any]) -> None:
    assert judge(evidence(200, **facts), POLICY) == Verdict(None, "")


def test_errors_may_be_allowed() -> None:
    policy = POLICY.model_copy(update={"errors": 2})
    assert judge(evidence(200, errors=2), policy).promote
    assert judge(evidence(200, errors=3), policy).promote is False


def test_a_difference_of_a_quarter_millisecond_does_not_matter() -> None:
    """Two processes of one version can differ by that."""
    assert judge(evidence(200, seconds=((0.0004, 0.0002),) * 200), POLICY).promote


def promoted(agreement: float, drawn: np.random.Generator) -> bool:
    """Whether a version that agrees with this probability is promoted before 16 x `requests`."""
    answers = drawn.random(3200) < agreement
    total = np.cumsum(answers)
    for compared in (50, 100, 200, 400, 800, 1600, 3200):
        verdict = judge(evidence(float(total[compared - 1]), compared), POLICY)
        if verdict.promote is not None:
            return verdict.promote
    return False


def test_noise_does_not_promote() -> None:
    """Twenty runs below the limit, fifty times: hardly one has two promotions, and of all
    runs at the limit itself fewer are promoted than PROMOTION_RISK allows."""
    drawn = np.random.default_rng(59)
    runs = [promoted(POLICY.agreement - 0.02, drawn) for _ in range(20 * 50)]
    groups = np.reshape(runs, (50, 20)).sum(axis=1)
    assert groups.max() <= 1
    at_the_limit = [promoted(POLICY.agreement, drawn) for _ in range(1000)]
    assert np.mean(at_the_limit) < PROMOTION_RISK
    good = [promoted(0.99, drawn) for _ in range(100)]
    assert np.mean(good) > 0.95


def test_the_evidence_is_one_line() -> None:
    nothing = TrialEvidence(errors=1, error="it died")
    assert summary(nothing) == "no request compared, 1 failure"
    some = TrialEvidence(compared=4, agreement=3.0)
    assert summary(some) == "agreement 0.750 (0.083 to 0.999) in 4 requests, 0 failures"


def test_the_history_is_even_and_has_few_points() -> None:
    """It ends with the latest request, and its interval narrows."""
    grown = TrialEvidence()
    for compared in range(1, 1001):
        grown = replace(grown, compared=compared, agreement=0.5 * compared, drift=compared / 1000)
        grown = with_point(grown, at=float(compared))
        assert len(grown.history) <= MAX_POINTS
    numbers = [point.compared for point in grown.history]
    assert numbers == [*range(32, 1000, 32), 1000]
    assert [point.at for point in grown.history] == numbers
    widths = [point.agreement_high - point.agreement_low for point in grown.history]
    assert widths == sorted(widths, reverse=True)
    assert {point.agreement for point in grown.history} == {0.5}
    assert (grown.history[-1].drift, grown.history[-1].ratio) == (1.0, None)
    timed = with_point(evidence(190, seconds=((0.02, 0.01),) * 20), at=0.0)
    assert timed.history[-1].ratio == pytest.approx(2)
