"""Groups are proven against their base, or say why not."""

from typing import Any

import pytest

from paddlepool.contracts.errors import BackendError, WorkerCrashed
from paddlepool.contracts.status import UNKNOWN_EFFECT, Effect
from paddlepool.contracts.tensors import Tensors
from paddlepool.engine.registry.model import ServedModel
from paddlepool.evidence.live.background import NOTHING_TO_COMPARE, RETRY_SECONDS, Prover, Which
from tests.engine.fakes import ManualClock, doubled, failing, infer
from tests.evidence.live.fakes import Live, nudged


def effect(served: ServedModel, group: str = "spare") -> Effect:
    return next(status.effect for status in served.groups() if status.name == group)


def prove_all(live: Live, which: Which = "all", **options: Any) -> tuple[int, Prover]:
    """How many groups were proven before none was left, and by whom."""
    prover = Prover(live.registry, live.predictors, which=which, **options)
    count = 0
    while prover.prove_one():
        count += 1
    return count, prover


async def test_other_outputs_prove_a_group(live: Live) -> None:
    """Bit by bit, against a base that repeats itself."""
    runs = 0

    def by_turns(inputs: Tensors) -> Tensors:
        # own warm-up, own, base warm-up, base; then base, own, own, base, …
        nonlocal runs
        runs += 1
        own = runs <= 2 or (runs > 4 and runs % 4 in (2, 3))
        return nudged(inputs) if own else doubled(inputs)

    live.beside.behaviour = by_turns
    assert prove_all(live)[0] == 2
    proof = effect(live.served)
    assert proof.effective is True
    assert "other outputs than main" in proof.reason
    assert all(predictor.closed.is_set() for predictor in live.beside.opened)


async def test_a_refused_group_says_why(live: Live) -> None:
    """Such as bfloat16 on a processor without it."""
    live.beside.refuse = BackendError("this processor has no fast bfloat16")
    prove_all(live)
    assert effect(live.served) == Effect(None, "cannot start: this processor has no fast bfloat16")


DIED = "cannot start: killed"


@pytest.mark.parametrize(
    ("where", "error", "times", "first", "later", "proof"),
    [
        ("selftest", WorkerCrashed("killed"), 1, DIED, "changes nothing", False),
        ("selftest", WorkerCrashed("killed"), 2, DIED, DIED, None),
        ("behaviour", BackendError("full"), 1, "its runs failed: full", "changes nothing", False),
    ],
    ids=["died once", "died twice", "runs failed"],
)
async def test_what_may_pass_is_tried_again_later(
    live: Live,
    where: str,
    error: Exception,
    times: int,
    first: str,
    later: str,
    proof: bool | None,
) -> None:
    """The system may have killed a process for lack of memory, so the group is tried again later.
    If that process dies, too, the group is refused for good."""
    setattr(live.beside, where, failing(lambda: error, times=times))
    live.beside.seconds = 1.0
    clock = ManualClock()
    _, prover = prove_all(live, clock=clock)
    assert effect(live.served) == Effect(None, first)
    clock.advance(RETRY_SECONDS + 1)
    assert prover.prove_one()
    retried = effect(live.served)
    assert (retried.effective, later in retried.reason) == (proof, True)
    clock.advance(RETRY_SECONDS + 1)
    assert not prover.prove_one()


async def test_a_group_is_proven_once_it_is_started(live: Live) -> None:
    """Nothing is opened for a group that nobody uses, unless all are to be proven."""
    count, prover = prove_all(live, "started")
    assert count == 1
    assert effect(live.served, "main") == NOTHING_TO_COMPARE
    assert not live.beside.specs
    await infer(live.registry, group="spare")
    assert prover.prove_one()
    assert effect(live.served) != UNKNOWN_EFFECT
    assert not prover.prove_one()


async def test_off_proves_nothing(live: Live) -> None:
    assert prove_all(live, "off")[0] == 0
