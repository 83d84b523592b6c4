"""What is worth a change of the default group, and which of several candidates."""

import pytest

from app.contracts.status import Candidate
from app.evidence.verdict.proof import best_of, clearly_faster, undecided


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
    group: str, gain: float, megabytes: int, *, fit: bool = True, seconds: float | None = None
) -> Candidate:
    return Candidate(
        group=group,
        fit=fit,
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


def test_the_best_of_several() -> None:
    unfit = candidate("c", 9, 1, fit=False)
    assert chosen_of(candidate("a", 2.0, 100), candidate("b", 3.0, 900), unfit) == "b"
    assert chosen_of(unfit) is None
