"""The verdict on a configuration: noise never looks like an effect, nor an effect like noise. What
is worth a change of the default group, and which of several candidates."""

import math

import numpy as np
import pytest

from paddlepool.contracts.status import Candidate
from paddlepool.contracts.tensors import Tensors, largest_difference
from paddlepool.evidence.verdict.proof import (
    Runs,
    best_of,
    bitwise_equal,
    clearly_faster,
    judge,
    undecided,
)

Both = tuple[Runs, Runs]


def outputs(*values: float) -> Tensors:
    return {"y": np.array(values, np.float32)}


def runs_of(
    factor: float, *, noise: float, pairs: int, bitwise_equal: bool = True, repeatable: bool = True
) -> Both:
    """Times around 0.1 s of a group that takes `factor` times as long, with log-normal noise."""
    random = np.random.default_rng(pairs)
    shared = np.exp(random.normal(0, 0.3, pairs))  # what else the machine does: it hits both
    own, base = (0.1 * shared * np.exp(random.normal(0, noise, pairs)) for _ in range(2))
    return (
        Runs(list(factor * own), [outputs(1 if bitwise_equal else 2)], repeatable),
        Runs(list(base), [outputs(1)], repeatable),
    )


@pytest.mark.parametrize(
    ("found", "effect"),
    [
        pytest.param(runs_of(1.0, noise=0.05, pairs=60), "ineffective", id="nothing changed"),
        pytest.param(runs_of(1.0, noise=0.15, pairs=200), "ineffective", id="nothing, noisy"),
        pytest.param(runs_of(0.5, noise=0.15, pairs=40), "effective", id="twice as fast"),
        pytest.param(runs_of(1.3, noise=0.05, pairs=40), "effective", id="slower is an effect"),
        pytest.param(runs_of(1.02, noise=0.001, pairs=60), "ineffective", id="2 % is too little"),
        pytest.param(runs_of(1.08, noise=0.06, pairs=60), "unproven", id="between the two"),
        pytest.param(runs_of(1.0, noise=1.0, pairs=20), "unproven", id="noise hides anything"),
        pytest.param(runs_of(0.5, noise=0.01, pairs=4), "unproven", id="too few pairs"),
        pytest.param(
            runs_of(1.0, noise=0.05, pairs=4, bitwise_equal=False), "effective", id="other outputs"
        ),
        pytest.param(
            runs_of(1.0, noise=0.05, pairs=60, bitwise_equal=False, repeatable=False),
            "unproven",
            id="the base itself varies",
        ),
    ],
)
def test_the_verdict(found: Both, effect: str) -> None:
    """Other bits or a proven 5 % in time are an effect; too little to tell is said to be so."""
    verdict = judge(*found, base="native")
    assert verdict.effective is {"effective": True, "ineffective": False}.get(effect)
    assert "native" in verdict.reason
    assert verdict.low <= verdict.ratio <= verdict.high


def test_a_difference_of_the_way_there_is_no_effect() -> None:
    """Two processes of one configuration, a tenth of a millisecond apart on every run."""
    verdict = judge(Runs([0.0011] * 50), Runs([0.001] * 50), base="a")
    assert verdict.effective is False


def test_nothing_measured_is_unproven() -> None:
    verdict = judge(Runs(), Runs(), base="a")
    assert verdict.effective is None
    assert math.isnan(verdict.ratio)


def test_the_same_runs_give_the_same_verdict() -> None:
    """The bootstrap draws from a fixed seed."""
    runs = runs_of(0.9, noise=0.2, pairs=30)
    assert judge(*runs, base="native") == judge(*runs, base="native")


def test_drift_and_bits() -> None:
    """One unit in the last place is another output; a NaN and another shape drift infinitely."""
    nearly = {"y": np.nextafter(outputs(1, 2)["y"], np.float32(9))}
    assert bitwise_equal(outputs(1, 2), outputs(1, 2))
    assert not bitwise_equal(nearly, outputs(1, 2))
    assert not bitwise_equal(outputs(0.0), outputs(-0.0))
    assert largest_difference(outputs(1, 2.5), outputs(1, 2)) == 0.5
    assert largest_difference(outputs(math.nan), outputs(1)) == math.inf
    assert largest_difference(outputs(1), outputs(1, 2)) == math.inf


@pytest.mark.parametrize(
    ("low", "high", "faster", "open_"),
    [
        (1.2, 1.9, True, False),
        (0.7, 1.05, False, False),
        (1.05, 1.15, False, False),
        (0.8, 1.6, False, True),
    ],
    ids=["a gain, however wide", "no gain", "a gain of a tenth at best", "too noisy"],
)
def test_the_whole_interval_counts(low: float, high: float, faster: bool, open_: bool) -> None:
    assert (clearly_faster(low), undecided(low, high)) == (faster, open_)


def candidate(
    group: str, gain: float, megabytes: int, *, seconds: float | None = None
) -> Candidate:
    return Candidate(
        group=group,
        fit=True,
        reason="",
        gain=gain,
        seconds=seconds,
        resident_bytes=megabytes * 1_000_000,
    )


def chosen_of(*several: Candidate) -> str | None:
    """The best one's group, whatever the order."""
    best, again = (best_of(order, frozenset()) for order in (several, several[::-1]))
    assert best == again
    return None if best is None else best.group


def test_of_equals_the_one_that_answers_sooner() -> None:
    """Two threads do as much a second as two processes, and one request waits half as long."""
    chosen = chosen_of(
        candidate("processes", 2.7, 228, seconds=0.12),
        candidate("threads", 2.65, 229, seconds=0.065),
        candidate("alike", 2.7, 900, seconds=0.063),
        candidate("slow", 2.0, 10, seconds=0.01),
    )
    assert chosen == "threads"


@pytest.mark.parametrize(
    ("gain", "seconds", "chosen"),
    [(2.7, 0.19, "threads"), (2.5, 0.19, "processes"), (2.7, 0.22, "processes")],
    ids=["much sooner for little", "for too much", "a little sooner"],
)
def test_an_answer_that_comes_much_sooner_may_cost_some_throughput(
    gain: float, seconds: float, chosen: str
) -> None:
    processes = candidate("processes", 3.0, 200, seconds=0.3)
    threads = candidate("threads", gain, 400, seconds=seconds)
    assert chosen_of(processes, threads, candidate("small", gain, 10)) == chosen
