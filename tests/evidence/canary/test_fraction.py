"""A new version that answers a fraction of the requests, and an old one that stays warm."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from paddlepool.contracts.caller import REQUEST_ID
from paddlepool.contracts.errors import BackendError
from paddlepool.contracts.reasons import Restart
from tests.engine.fakes import eventually, infer
from tests.evidence.canary.conftest import POLICY, Bench
from tests.evidence.live.fakes import nudged


def answers(bench: Bench, *ids: str) -> Counter[int]:
    """Which versions answer the requests with these ids, or with a thousand of them."""
    versions: Counter[int] = Counter()
    for request_id in ids or map(str, range(1000)):
        REQUEST_ID.set(request_id)
        model = bench.registry.acquire("double", spread=True)
        versions[model.version] += 1
        model.release()
    return versions


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    """Version 2 answers a quarter of the requests."""
    bench = Bench(tmp_path)
    bench.write(1, 2, policy=POLICY + "fraction = 0.25\n")
    await bench.start()
    await bench.step()
    yield bench
    await bench.stop()


def open_ones(bench: Bench) -> int:
    return sum(not predictor.closed.is_set() for predictor in bench.serving.opened)


async def test_a_fraction_of_the_requests_is_answered_by_the_new_version(bench: Bench) -> None:
    """By the hash of the request's id: one that is sent again meets the same version."""
    counted = answers(bench)
    assert set(counted) == {1, 2}
    assert 200 < counted[2] < 300
    assert len({tuple(answers(bench, "the same")) for _ in range(9)}) == 1
    assert bench.served() == [1]
    with bench.registry.lease("double") as model:  # no request of a task or for an inference
        assert model.version == 1


async def test_a_promoted_version_is_not_opened_again(bench: Bench) -> None:
    assert len(bench.serving.opened) == 2
    status = await bench.requests(40)
    assert (status.state, bench.served()) == ("promoted", [2])
    assert len(bench.serving.opened) == 2
    assert answers(bench) == {2: 1000}


async def test_a_rejected_version_answers_no_more(bench: Bench) -> None:
    bench.beside.of(2).behaviour = nudged
    assert (await bench.requests(40)).state == "rejected"
    assert answers(bench) == {1: 1000}
    assert open_ones(bench) == 1


async def test_a_version_that_dies_while_it_answers_is_rejected(bench: Bench) -> None:
    bench.serving.refuse = BackendError("gone")
    bench.serving.opened[1].die(Restart.CRASHED)
    beside = bench.registry.beside.get("double")
    assert beside is not None
    await eventually(lambda: not beside.ready())
    assert answers(bench) == {1: 1000}
    await bench.step()
    status = bench.status()
    assert status.reason.startswith("its processes ended while it answered requests")
    assert status.state == "rejected"


async def test_a_crash_counts_although_the_process_is_replaced(bench: Bench) -> None:
    bench.serving.opened[1].die(Restart.CRASHED)
    beside = bench.registry.beside.get("double")
    assert beside is not None
    await eventually(lambda: beside.faults == 1 and beside.ready())
    await bench.step()
    status = bench.status()
    assert status.state == "rejected"
    assert "(faults: 1)" in status.reason


async def test_a_process_that_is_ended_from_outside_does_not_count(bench: Bench) -> None:
    opened = len(bench.serving.opened)
    bench.serving.opened[1].die(Restart.KILLED)
    beside = bench.registry.beside.get("double")
    assert beside is not None
    await eventually(lambda: len(bench.serving.opened) > opened and beside.ready())
    await bench.step()
    assert bench.status().state == "testing"


async def test_a_version_that_cannot_be_loaded_answers_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.write(1, policy=POLICY + "fraction = 0.25\n")
    await bench.start()
    bench.publish(2)
    await bench.registry.load("double", changed=[2])
    bench.serving.refuse = BackendError("no memory")
    await bench.step()
    assert bench.status().reason == "cannot answer requests: no memory"
    assert answers(bench) == {1: 1000}
    await bench.stop()


async def test_a_newer_version_takes_the_place(bench: Bench) -> None:
    bench.publish(3)
    await bench.registry.load("double", changed=[3])
    assert answers(bench) == {1: 1000}
    await bench.step()
    assert set(answers(bench)) == {1, 3}
    assert open_ones(bench) == 2


async def test_the_old_version_stays_warm_for_a_rollback(bench: Bench) -> None:
    await bench.control.promote("double")
    opened = len(bench.serving.opened)
    await bench.control.rollback("double")
    assert (await infer(bench.registry)).version == 1
    assert len(bench.serving.opened) == opened
    assert open_ones(bench) == 1


async def test_the_old_version_is_closed_after_a_while(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.write(1, 2, policy=POLICY + "rollback_seconds = 0.01\n")
    await bench.start()
    await bench.step()
    await bench.control.promote("double")
    await eventually(lambda: bench.registry.beside.get("double") is None)
    await eventually(lambda: open_ones(bench) == 1)
    await bench.control.rollback("double")
    assert bench.served() == [1]
    await bench.stop()


async def test_unloading_closes_both(bench: Bench) -> None:
    await bench.registry.unload("double")
    await asyncio.sleep(0)
    assert open_ones(bench) == 0
