"""A composed model with the policy "canary": its versions and its parts' are judged as a whole."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from pydantic import BaseModel

from paddlepool.contracts.errors import (
    BackendError,
    CanaryConflict,
    ConfigError,
    DeadlineExceeded,
    Overloaded,
    WorkerCrashed,
)
from paddlepool.contracts.tensors import Tensors
from paddlepool.engine.dataplane import ready
from paddlepool.engine.registry.promotions import Serving
from paddlepool.evidence.canary.evidence import size_of
from paddlepool.evidence.canary.judge import PAYLOAD_BYTES, RETRY_SECONDS
from paddlepool.evidence.canary.whole import PartPredictors
from tests.engine.chain import rewrite_manifest, write_composed
from tests.engine.fakes import PATIENCE, Behaviour, failing
from tests.evidence.canary.conftest import POLICY, WholeBench
from tests.evidence.live.fakes import nudged
from tests.model_files import add_to_config


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[WholeBench]:
    bench = WholeBench(tmp_path)
    yield bench
    await bench.stop()


OLD, NEW = {"chain": 1, "one": 1, "two": 1}, {"chain": 1, "one": 1, "two": 2}


async def test_a_new_part_serves_when_the_whole_has_proven_itself(on_trial: WholeBench) -> None:
    assert on_trial.sets() == OLD
    assert on_trial.beside.open() == 3  # the part `one` of both sets is one process
    status = await on_trial.requests(39)
    assert (status.state, status.compared, on_trial.sets()) == ("testing", 39, OLD)
    status = await on_trial.requests(1)
    assert (status.state, status.by, on_trial.sets()) == ("promoted", "measured", NEW)
    assert (status.agreement, status.identical, status.errors) == (1.0, 40, 0)
    assert (status.ratio, status.pairs) == (1.0, 40)
    assert (status.parts, status.current_parts) == ({"one": 1, "two": 2}, {"one": 1, "two": 1})
    assert (status.serving_parts, status.previous_parts) == (status.parts, status.current_parts)
    assert on_trial.beside.open() == 0
    assert not await on_trial.step()
    await asyncio.sleep(0)
    # The first stays open for a rollback, the second and third compared, the last one serves.
    assert [pipeline.closed for pipeline in on_trial.pipelines] == [False, True, True, False]


def with_nan(inputs: Tensors) -> Tensors:
    return {"y": np.full_like(inputs["x"], np.nan)}


FAULTS = {
    "other answers": (nudged, "agreement 0.000 with the current version in 10 requests"),
    "NaN": (with_nan, "1 failure: an output of two contains NaN or infinity"),
    "a crash": (failing(lambda: WorkerCrashed("it died")), "1 failure: it died"),
    "a slow run": (failing(lambda: DeadlineExceeded("120 s")), "1 failure: two: 120 s"),
}


@pytest.mark.parametrize(("behaviour", "reason"), FAULTS.values(), ids=FAULTS)
async def test_a_faulty_part_is_rejected_with_the_reason(
    on_trial: WholeBench, behaviour: Behaviour, reason: str
) -> None:
    on_trial.beside.of(2, "two").behaviour = behaviour
    status = await on_trial.requests(40)
    assert (status.state, on_trial.sets()) == ("rejected", OLD)
    assert status.reason.startswith(reason)
    assert on_trial.beside.open() == 0
    [row] = [row for row in on_trial.registry.index() if (row.name, row.version) == ("two", 2)]
    assert row.reason == f"canary of chain: rejected: {status.reason}"


async def test_a_slow_part_is_rejected_for_the_time_of_the_whole(on_trial: WholeBench) -> None:
    on_trial.beside.of(2, "two").seconds = 0.03
    status = await on_trial.requests(40)
    assert status.state == "rejected"
    assert status.reason.startswith("2.00 times the run time")


async def test_a_fault_in_the_code_of_the_task_counts(on_trial: WholeBench) -> None:
    *_, own, base = on_trial.pipelines
    own.error = lambda: ValueError("three columns")
    status = await on_trial.requests(1)
    assert status.reason == "1 failure: the pipeline raised ValueError, see the log"
    assert status.state == "rejected"
    assert not base.error


@pytest.mark.parametrize(
    "error", [Overloaded("no room"), DeadlineExceeded("late"), OSError(28, "No space")]
)
@pytest.mark.parametrize("side", ["own", "base"])
async def test_a_failure_of_the_server_says_nothing(
    on_trial: WholeBench, error: Exception, side: str
) -> None:
    failing_side = on_trial.pipelines[-2 if side == "own" else -1]
    failing_side.error = lambda: error
    assert (await on_trial.requests(3)).compared == 0
    failing_side.error = None
    status = await on_trial.requests(40)
    assert (status.state, status.errors) == ("promoted", 0)


async def test_a_part_that_breaks_the_sample_request_is_rejected_at_once(
    bench: WholeBench,
) -> None:
    bench.write(1, 2)
    bench.beside.of(2, "two").behaviour = lambda inputs: {"y": 2.0005 * inputs["x"]}  # type: ignore[operator]
    await bench.start()
    await bench.step()
    assert bench.status().state == "rejected"
    assert bench.status().reason.startswith("cannot start: self-test: 4.00")


@pytest.mark.parametrize("measure", [None, lambda answer, _: 1 / (answer - 4)])
async def test_answers_that_cannot_be_compared_do_not_agree(
    bench: WholeBench, measure: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.write(1, 2)
    await bench.start()
    bench.judge.agreement_of = lambda _: measure
    await bench.step()
    if measure is None:
        monkeypatch.setattr(bench.pipelines[-1], "check", lambda answer, expected: {}[answer])
    status = await bench.requests(10)
    assert (status.state, status.agreement) == ("rejected", 0.0)


async def test_a_check_that_fails_on_the_sample_rejects_at_once(bench: WholeBench) -> None:
    models = bench.write(1, 2)
    await bench.start()
    (models / "chain" / "1" / "sample.txt").write_text("x", "utf-8")
    rewrite_manifest(models / "chain" / "1")
    await bench.step()
    reason = "cannot start: self-test: the pipeline raised ValueError, see the log"
    assert (bench.status().state, bench.status().reason) == ("rejected", reason)


async def test_a_trial_that_waits_says_why(on_trial: WholeBench) -> None:
    await on_trial.stop()
    weights = on_trial.root / "models" / "two" / "2" / "inference.pdiparams"
    weights.write_bytes(b"half")
    await on_trial.start()
    await on_trial.step()
    assert on_trial.status().state == "testing"
    assert on_trial.status().reason.startswith("chain@1 with two@2 cannot be read: two/2: ")


async def test_new_versions_of_both_parts_are_swapped_in_one_step(bench: WholeBench) -> None:
    bench.write(1)
    await bench.start()
    bench.publish(2, model="one")
    await bench.registry.load("one", changed=[2])
    bench.publish(2, model="two")
    await bench.registry.load("two", changed=[2])
    await bench.step()
    assert bench.status().parts == {"one": 2, "two": 2}
    seen = set()

    async def clients() -> None:
        while bench.sets() == OLD:
            output = await bench.dataplane.run("chain", ready([1.0]), timeout=PATIENCE)
            seen.add(output.value[1])

    asking = asyncio.create_task(clients())
    await bench.control.promote("chain")
    await asking
    assert bench.sets() == {"chain": 1, "one": 2, "two": 2}
    assert seen <= {(1, 1), (2, 2)}


async def test_a_version_of_the_composed_model_is_judged_too(bench: WholeBench) -> None:
    models = bench.write(1, 2)
    await bench.start()
    (models / "chain" / "2").mkdir()
    for path in (models / "chain" / "1").iterdir():
        (models / "chain" / "2" / path.name).write_bytes(path.read_bytes())
    await bench.registry.load("chain", changed=[2])
    assert bench.sets() == OLD
    status = await bench.requests(1)
    await bench.step()
    status = await bench.requests(40)
    assert (status.state, status.version, status.current) == ("promoted", 2, 1)
    assert bench.sets() == NEW | {"chain": 2}


async def test_a_rollback_returns_to_the_set_before(on_trial: WholeBench) -> None:
    await on_trial.control.promote("chain")
    assert on_trial.sets() == NEW
    await on_trial.control.rollback("chain")
    assert on_trial.sets() == OLD
    assert (on_trial.status().state, on_trial.status().previous) == ("rejected", None)
    await on_trial.step()
    assert on_trial.sets() == OLD


async def test_a_part_that_was_rejected_does_not_return_with_another(on_trial: WholeBench) -> None:
    await on_trial.control.reject("chain")
    on_trial.publish(2, model="one")
    await on_trial.registry.load("one", changed=[2])
    await on_trial.step()
    assert on_trial.status().parts == {"one": 2, "two": 1}
    assert (await on_trial.requests(40)).state == "promoted"
    assert on_trial.sets() == {"chain": 1, "one": 2, "two": 1}
    with pytest.raises(CanaryConflict):
        await on_trial.control.promote("chain")


async def test_a_set_that_cannot_be_loaded_is_rejected(on_trial: WholeBench) -> None:
    on_trial.serving.refuse = BackendError("no memory")
    with pytest.raises(Exception, match="no memory"):
        await on_trial.control.promote("chain")
    assert (on_trial.status().state, on_trial.sets()) == ("rejected", OLD)


@pytest.mark.parametrize("killed", [False, True])
async def test_a_promoted_set_serves_after_a_restart(on_trial: WholeBench, killed: bool) -> None:
    await on_trial.control.promote("chain")
    await on_trial.stop(killed=killed)
    on_trial.publish(3, model="two")
    await on_trial.start()
    assert on_trial.sets() == NEW
    await on_trial.step()
    assert on_trial.status().parts == {"one": 1, "two": 3}


async def test_a_server_that_is_killed_in_a_promotion_has_promoted(on_trial: WholeBench) -> None:
    parts = {"one": 1, "two": 2}
    on_trial.promotions.serve("chain", Serving(model="chain", version=1, parts=parts, at=1.0))
    await on_trial.stop(killed=True)
    await on_trial.start()
    assert (on_trial.sets(), on_trial.status().state) == (NEW, "promoted")


async def test_a_trial_goes_on_after_a_restart(on_trial: WholeBench) -> None:
    await on_trial.requests(20)
    await on_trial.stop()
    await on_trial.start()
    await on_trial.step()
    assert (on_trial.status().compared, on_trial.sets()) == (20, OLD)
    assert (await on_trial.requests(20)).state == "promoted"


async def test_a_reload_of_a_part_changes_no_version(on_trial: WholeBench) -> None:
    await on_trial.requests(2)
    await on_trial.registry.load("two")
    await on_trial.registry.load("one")
    await on_trial.step()
    assert (on_trial.sets(), on_trial.status().compared) == (OLD, 2)
    assert (await on_trial.requests(38)).state == "promoted"


async def test_a_part_that_is_unloaded_suspends_the_trial(on_trial: WholeBench) -> None:
    await on_trial.requests(2)
    await on_trial.registry.unload("one")
    await on_trial.step()
    assert on_trial.beside.open() == 0
    await on_trial.registry.load("one")
    await on_trial.step()
    assert (await on_trial.requests(38)).state == "promoted"


async def test_a_part_that_cannot_be_read_is_tried_later(bench: WholeBench) -> None:
    models = bench.write(1, 2)
    weights = models / "two" / "2" / "inference.pdiparams"
    content = weights.read_bytes()
    weights.write_bytes(b"half")
    await bench.start()
    await bench.step()
    assert bench.status().reason.startswith("chain@1 with two@2 cannot be read: two/2: ")
    weights.write_bytes(content)
    bench.clock.advance(RETRY_SECONDS)
    await bench.step()
    assert bench.status().state == "testing"


@pytest.mark.parametrize("model", ["one", "two"])
async def test_only_memory_of_new_parts_counts(on_trial: WholeBench, model: str) -> None:
    for predictor in on_trial.beside.of(1, model).opened:
        predictor.resident = on_trial.judge.max_resident_bytes + 1
    status = await on_trial.requests(1)
    assert (status.state, status.errors, on_trial.beside.open()) == ("testing", 0, 0)
    assert (await on_trial.requests(39)).state == "promoted"  # in fresh processes
    assert len(on_trial.beside.of(1, model).opened) == 2


async def test_a_large_process_of_a_new_part_is_a_failure(on_trial: WholeBench) -> None:
    on_trial.beside.of(2, "two").opened[0].resident = on_trial.judge.max_resident_bytes + 1
    assert (await on_trial.requests(1)).reason.startswith("1 failure: a process of 2147 MB")


async def test_other_parts_in_the_configuration_wait_for_a_load(bench: WholeBench) -> None:
    bench.write(1, 2)
    await bench.start()
    config = bench.root / "models" / "chain" / "config.toml"
    text = config.read_text("utf-8")
    config.write_text(text.replace('second = "two"', 'second = "three"'), "utf-8")
    await bench.step()
    assert bench.status().reason.endswith(
        "cannot be judged: its [parts] have changed since it was loaded"
    )
    config.write_text(text, "utf-8")
    bench.clock.advance(RETRY_SECONDS)
    await bench.step()
    assert bench.status().state == "testing"


async def test_the_task_may_have_a_measure(bench: WholeBench) -> None:
    bench.write(1, 2)
    await bench.start()
    bench.judge.agreement_of = lambda info: lambda answer, expected: float(expected / answer)  # type: ignore[operator]
    await bench.step()
    bench.beside.of(2, "two").behaviour = nudged
    await bench.requests(1)
    assert bench.status().agreement == 4 / 4.25


async def test_requests_are_kept_for_a_person(bench: WholeBench) -> None:
    bench.write(1, 2, policy=POLICY + "keep_examples = 2\n")
    await bench.start()
    await bench.step()
    bench.beside.of(2, "two").behaviour = nudged
    await bench.request(3.0)
    [example] = bench.control.examples_of("chain")
    assert example == (0.0, (3.0,), 12.25, 12.0)


async def test_a_large_request_is_not_kept(on_trial: WholeBench) -> None:
    [chain] = on_trial.registry.composed()
    assert not on_trial.judge.offer(chain, b"0" * (PAYLOAD_BYTES + 1))
    assert on_trial.judge.offer(chain, b"0" * PAYLOAD_BYTES)
    assert not on_trial.judge.offer(chain, b"0")  # one waits


def test_the_size_of_a_payload_is_that_of_its_content() -> None:
    @dataclass(frozen=True, slots=True)
    class Picture:
        content: bytes

    class Request(BaseModel):
        pictures: tuple[Picture, ...]
        options: dict[str, str]

    assert size_of(Request(pictures=(Picture(b"1234"), Picture(b"12")), options={"a": "123"})) == 9
    assert size_of({"x": np.zeros(4, np.float32)}) == 16
    assert size_of(1) > 0


async def test_servers_that_share_a_file_swap_the_same_set(on_trial: WholeBench) -> None:
    other = WholeBench(on_trial.root)
    await other.start()
    await other.step()
    other.clock.advance(1)
    await other.control.promote("chain")
    assert (other.sets(), on_trial.sets()) == (NEW, OLD)
    await on_trial.step()
    assert (on_trial.sets(), on_trial.status().state) == (NEW, "promoted")
    on_trial.clock.advance(2)
    await on_trial.control.rollback("chain")
    await other.step()
    assert (other.sets(), other.status().state) == (OLD, "rejected")
    await other.stop()


async def test_a_server_that_gets_a_promoted_part_later_serves_it(tmp_path: Path) -> None:
    first, other = WholeBench(tmp_path / "first"), WholeBench(tmp_path / "other")
    other.state = first.state
    first.write(1, 2)
    other.write(1)
    for bench in (first, other):
        await bench.start()
        await bench.step()
    first.clock.advance(1)
    await first.control.promote("chain")
    await other.step()
    assert other.sets() == OLD
    other.publish(2, model="two")
    await other.registry.load("two", changed=[2])
    assert other.sets() == NEW
    for bench in (first, other):
        await bench.stop()


async def test_a_promoted_part_serves_once_it_is_repaired(on_trial: WholeBench) -> None:
    await on_trial.control.promote("chain")
    await on_trial.stop()
    weights = on_trial.root / "models" / "two" / "2" / "inference.pdiparams"
    content = weights.read_bytes()
    weights.write_bytes(b"half")
    await on_trial.start()
    assert on_trial.sets() == OLD
    weights.write_bytes(content)
    await on_trial.registry.load("two", changed=[2])
    assert on_trial.sets() == NEW


async def test_a_faulty_configuration_lets_no_new_part_serve(on_trial: WholeBench) -> None:
    config = on_trial.root / "models" / "chain" / "config.toml"
    text = config.read_text("utf-8")
    config.write_text(f"{text}[", "utf-8")
    await on_trial.registry.load("two")
    assert on_trial.sets() == OLD
    await on_trial.stop()
    await on_trial.start()
    config.write_text(text, "utf-8")
    await on_trial.registry.load("chain")
    assert on_trial.sets() == OLD


def test_no_predictor_is_closed_while_it_runs() -> None:
    """A call of a failed request may still run in a thread of its own."""
    shadow = Mock()
    predictors = PartPredictors(Mock(open_first=lambda *_: (shadow, "main")), {"one": "main"})
    locked: list[bool] = []
    shadow.close.side_effect = lambda: locked.append(predictors.lock.locked())
    part = SimpleNamespace(name="one", version=1, config=SimpleNamespace(default_group="main"))
    predictors.open(Mock(parts={"first": part}))
    predictors.close()
    assert locked == [True]


async def test_a_part_is_not_judged_for_itself(on_trial: WholeBench) -> None:
    with pytest.raises(CanaryConflict, match="is not canary; it is judged as a part of chain"):
        on_trial.control.status("two")


@pytest.mark.parametrize("conflict", ["policy", "another"])
async def test_a_part_that_is_judged_elsewhere_is_an_error(tmp_path: Path, conflict: str) -> None:
    bench = WholeBench(tmp_path)
    models = bench.write(1)
    if conflict == "policy":
        add_to_config(models / "two", POLICY)
        reason = "its part second, model two, has a [version_policy] of its own: with kind = "
    else:
        (models / "chain").rename(models / "zebra")
        write_composed(models)
        add_to_config(models / "chain", POLICY)
        bench.model, reason = "zebra", "its part first, model one, is judged with chain"
    await bench.start()
    [row] = [row for row in bench.registry.index() if row.name == bench.model]
    assert row.reason.startswith(reason)
    with pytest.raises(ConfigError, match="judged"):
        await bench.registry.load(bench.model)
    await bench.stop()


async def test_the_policy_may_be_given_up(on_trial: WholeBench) -> None:
    config = on_trial.root / "models" / "chain" / "config.toml"
    config.write_text(config.read_text("utf-8").replace(POLICY, ""), "utf-8")
    await on_trial.registry.load("chain")
    await on_trial.registry.load("two")
    assert on_trial.sets() == NEW
    assert on_trial.promotions.serving("chain") is None
