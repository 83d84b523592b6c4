"""A new set of versions that answers a fraction of the requests, and an old one that stays warm."""

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from paddlepool.contracts.caller import REQUEST_ID
from paddlepool.contracts.errors import BackendError
from paddlepool.contracts.reasons import Restart
from paddlepool.engine.dataplane import ready
from tests.engine.fakes import PATIENCE, eventually
from tests.evidence.canary.conftest import POLICY, WholeBench
from tests.evidence.live.fakes import nudged

OLD, NEW = (1, 1), (1, 2)
"""The versions of the parts, as an answer has them."""


async def answers(bench: WholeBench, *ids: str) -> Counter[tuple[int, ...]]:
    """Which sets answer the requests with these ids, or with a hundred of them."""
    counted: Counter[tuple[int, ...]] = Counter()
    for request_id in ids or map(str, range(100)):
        REQUEST_ID.set(request_id)
        output = await bench.dataplane.run("chain", ready([1.0]), timeout=PATIENCE)
        assert output.value[0] == [4.0]
        counted[output.value[1]] += 1
    return counted


async def compare(bench: WholeBench, requests: int) -> None:
    for _ in range(requests):
        [chain] = bench.registry.composed()
        bench.judge.offer(chain, [1.0])
        await bench.step()


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[WholeBench]:
    """A set with version 2 of the part `two` answers a quarter of the requests."""
    bench = WholeBench(tmp_path)
    bench.write(1, 2, policy=POLICY + "fraction = 0.25\n")
    await bench.start()
    await bench.step()
    yield bench
    await bench.stop()
    assert open_ones(bench) == 0


def open_ones(bench: WholeBench) -> int:
    return sum(not predictor.closed.is_set() for predictor in bench.serving.opened)


async def test_a_fraction_of_the_requests_is_answered_by_the_new_set(bench: WholeBench) -> None:
    counted = await answers(bench)
    assert set(counted) == {OLD, NEW}
    assert 15 < counted[NEW] < 35
    assert len({tuple(await answers(bench, "the same")) for _ in range(9)}) == 1
    assert open_ones(bench) == 3  # the part that both use runs once
    assert bench.sets()["two"] == 1


async def test_only_answers_of_the_current_set_are_compared(bench: WholeBench) -> None:
    beside = bench.registry.beside.get("chain")
    assert beside is not None
    assert not bench.judge.offer(beside, [1.0])
    [chain] = bench.registry.composed()
    assert bench.judge.offer(chain, [1.0])


async def test_a_promoted_set_is_not_opened_again(bench: WholeBench) -> None:
    opened = len(bench.serving.opened)
    await compare(bench, 40)
    assert bench.status().state == "promoted"
    assert len(bench.serving.opened) == opened
    assert await answers(bench) == {NEW: 100}


async def test_a_rejected_set_answers_no_more(bench: WholeBench) -> None:
    bench.beside.of(2, "two").behaviour = nudged
    await compare(bench, 10)
    assert bench.status().state == "rejected"
    assert await answers(bench) == {OLD: 100}
    assert open_ones(bench) == 2


async def test_a_part_that_dies_while_it_answers_rejects_the_set(bench: WholeBench) -> None:
    bench.serving.opened[-1].die(Restart.CRASHED)
    beside = bench.registry.beside.get("chain")
    assert beside is not None
    await eventually(lambda: beside.faults == 1 and beside.ready())
    await bench.step()
    assert bench.status().reason.startswith("its processes ended while it answered requests")
    assert await answers(bench) == {OLD: 100}


async def test_a_shared_part_that_dies_says_nothing_about_the_set(bench: WholeBench) -> None:
    bench.serving.refuse = BackendError("not yet")
    [one] = [model for model in bench.registry.served() if model.name == "one"]
    for serving in bench.serving.opened[:2]:  # of the current set
        serving.die(Restart.CRASHED)
    await eventually(lambda: not one.ready())
    await bench.step()
    assert bench.status().state == "testing"
    bench.serving.refuse = None


async def test_a_set_that_cannot_be_opened_answers_nothing(tmp_path: Path) -> None:
    bench = WholeBench(tmp_path)
    bench.write(1, policy=POLICY + "fraction = 0.25\n")
    await bench.start()
    bench.publish(2, model="two")
    await bench.registry.load("two", changed=[2])
    bench.serving.refuse = BackendError("no memory")
    await bench.step()
    assert bench.status().reason == "cannot answer requests: no memory"
    assert await answers(bench) == {OLD: 100}
    await bench.stop()


@pytest.mark.parametrize("part", ["one", "two"])
async def test_a_reload_of_a_part_opens_the_set_again(bench: WholeBench, part: str) -> None:
    await bench.registry.load(part)
    assert set(await answers(bench)) == {OLD}
    await bench.step()
    assert set(await answers(bench)) == {OLD, NEW}
    assert open_ones(bench) == 3


async def test_another_default_group_of_a_part_opens_the_set_again(bench: WholeBench) -> None:
    [one] = [model for model in bench.registry.served() if model.name == "one"]
    assert await bench.registry.adopt(one, one.choice)
    assert set(await answers(bench)) == {OLD}
    await bench.step()
    assert set(await answers(bench)) == {OLD, NEW}
    assert open_ones(bench) == 3


async def test_a_newer_part_takes_the_place(bench: WholeBench) -> None:
    bench.publish(3, model="two")
    await bench.registry.load("two", changed=[3])
    assert set(await answers(bench)) == {OLD}
    await bench.step()
    assert set(await answers(bench)) == {OLD, (1, 3)}
    assert open_ones(bench) == 3


async def test_the_old_set_stays_warm_for_a_rollback(bench: WholeBench) -> None:
    await bench.control.promote("chain")
    opened = len(bench.serving.opened)
    assert open_ones(bench) == 3
    await bench.control.rollback("chain")
    assert await answers(bench) == {OLD: 100}
    assert len(bench.serving.opened) == opened
    assert open_ones(bench) == 2


async def test_the_old_set_is_closed_after_a_while(tmp_path: Path) -> None:
    bench = WholeBench(tmp_path)
    bench.write(1, 2, policy=POLICY + "rollback_seconds = 0.01\n")
    await bench.start()
    await bench.step()
    await bench.control.promote("chain")
    await eventually(lambda: open_ones(bench) == 2)
    await bench.control.rollback("chain")
    assert bench.sets()["two"] == 1
    await bench.stop()


async def test_a_part_that_is_replaced_ends_the_old_set(bench: WholeBench) -> None:
    await bench.control.promote("chain")
    await bench.registry.load("one")
    assert bench.registry.beside.get("chain") is None
    assert open_ones(bench) == 2
    await bench.control.rollback("chain")
    assert await answers(bench) == {OLD: 100}


@pytest.mark.parametrize("model", ["chain", "one"])
async def test_unloading_closes_the_new_set(bench: WholeBench, model: str) -> None:
    await bench.registry.unload(model)
    assert open_ones(bench) == (2 if model == "chain" else 1)
