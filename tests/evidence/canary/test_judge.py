"""A new version on trial: what promotes it, what rejects it, and what clients see meanwhile."""

import errno

import numpy as np
import pytest

from paddlepool.contracts.errors import BackendError, DeadlineExceeded, WorkerCrashed
from paddlepool.contracts.tensors import Tensors
from paddlepool.evidence.canary.judge import RETRY_SECONDS, STORE_SECONDS
from tests.engine.fakes import Behaviour, doubled, failing
from tests.evidence.canary.conftest import POLICY, Bench
from tests.evidence.live.fakes import nudged
from tests.model_files import write_manifest


def now_and_then(every: int, behaviour: Behaviour) -> Behaviour:
    """Every so many runs are wrong."""
    runs = 0

    def one(inputs: Tensors) -> Tensors:
        nonlocal runs
        runs += 1
        return behaviour(inputs) if runs % every == 0 else doubled(inputs)

    return one


def with_nan(inputs: Tensors) -> Tensors:
    return {"y": np.full_like(inputs["x"], np.nan)}


async def test_a_version_that_is_the_same_is_promoted(on_trial: Bench) -> None:
    status = await on_trial.requests(39)
    assert (status.state, status.compared, on_trial.served()) == ("testing", 39, [1])
    status = await on_trial.requests(1)
    assert (status.state, status.by, on_trial.served()) == ("promoted", "measured", [2])
    assert (status.agreement, status.identical, status.errors) == (1.0, 40, 0)
    assert (status.serving, status.previous, status.ratio) == (2, 1, 1.0)
    first, *_, last = status.history
    assert (first.compared, first.ratio, last.compared, last.ratio) == (1, None, 40, 1.0)
    assert first.agreement_low < last.agreement_low == status.agreement_low
    assert (status.agreement_limit, status.ratio_limit) == (0.8, 1.25)
    assert on_trial.beside.open() == 0
    assert not await on_trial.step()


FAULTS = {
    "other outputs": (nudged, "agreement 0.000 with the current version in 10 requests"),
    "NaN now and then": (now_and_then(9, with_nan), "1 failure: output 'y' contains NaN"),
    "a crash": (failing(lambda: WorkerCrashed("it died")), "1 failure: it died"),
    "a failed run": (failing(lambda: BackendError("no")), "1 failure: no"),
    "too slow": (failing(lambda: DeadlineExceeded("120 s")), "1 failure: 120 s"),
    "another shape": (lambda inputs: {"y": inputs["x"][0]}, "1 failure: output 'y' has another"),
}


@pytest.mark.parametrize(("behaviour", "reason"), FAULTS.values(), ids=FAULTS)
async def test_a_faulty_version_is_rejected_with_the_reason(
    on_trial: Bench, behaviour: Behaviour, reason: str
) -> None:
    """Each request of a client is answered by the current version: `registry_answers` checks."""
    on_trial.beside.of(2).behaviour = behaviour
    status = await on_trial.requests(40)
    assert (status.state, on_trial.served()) == ("rejected", [1])
    assert status.reason.startswith(reason)
    assert on_trial.beside.open() == 0
    [index] = [row for row in on_trial.registry.index() if row.version == 2]
    assert index.reason == f"canary: rejected: {status.reason}"


async def test_a_slow_version_is_rejected(on_trial: Bench) -> None:
    on_trial.beside.of(2).seconds = 0.03
    status = await on_trial.requests(40)
    assert status.state == "rejected"
    assert status.reason.startswith("3.00 times the run time of the current version")


async def test_a_version_that_needs_too_much_memory_is_rejected(on_trial: Bench) -> None:
    [predictor] = on_trial.beside.of(2).opened
    predictor.resident = 3 << 30
    assert "a process of 3221 MB, the limit is 2147 MB" in (await on_trial.requests(1)).reason


async def test_the_answers_of_one_kind_are_judged_for_themselves(bench: Bench) -> None:
    """A version that is wrong about one rare label agrees in most requests."""
    bench.slices = lambda outputs: ["small" if y[0] < 2 else "large" for y in outputs["y"]]

    def wrong_below_one(inputs: Tensors) -> Tensors:
        return nudged(inputs) if inputs["x"][0, 0] < 1 else doubled(inputs)

    bench.beside.of(2).behaviour = wrong_below_one
    bench.write(1, 2, policy=POLICY.replace("0.8", "0.5").replace("40", "120"))
    await bench.start()
    await bench.step()
    for number in range(60):
        await bench.request(float(number % 6), 1.0)
    status = bench.status()
    assert (status.state, status.compared) == ("rejected", 60)
    assert status.reason == "of 10 answers 'small', a share of 0.000 agrees, the limit is 0.5"
    assert [(row.name, row.rows) for row in status.slices] == [("small", 10), ("large", 50)]


async def test_a_request_that_the_current_version_cannot_answer_says_nothing(
    on_trial: Bench,
) -> None:
    broken = failing(lambda: BackendError("out of range"), times=4)
    on_trial.beside.of(1).behaviour = on_trial.beside.of(2).behaviour = broken
    status = await on_trial.requests(2)
    assert (status.compared, status.errors, status.state) == (0, 0, "testing")


@pytest.mark.parametrize(
    ("refuse", "state"),
    [
        (BackendError("no such operator"), "rejected"),
        (WorkerCrashed("it died"), "rejected"),
        (OSError(errno.EAGAIN, "Resource temporarily unavailable"), "testing"),
    ],
    ids=["refused", "died", "the system's fault"],
)
async def test_a_version_that_cannot_start(bench: Bench, refuse: Exception, state: str) -> None:
    bench.write(1, 2)
    bench.beside.of(2).refuse = refuse
    await bench.start()
    await bench.step()
    assert (bench.status().state, bench.served()) == (state, [1])
    bench.beside.of(2).refuse = None
    assert not await bench.step()
    bench.clock.advance(RETRY_SECONDS)
    await bench.step()
    status = await bench.requests(40)
    assert status.state == ("promoted" if state == "testing" else "rejected")


async def test_files_that_are_incomplete_are_read_again_later(bench: Bench) -> None:
    model = bench.write(1, 2)
    (model / "2" / "inference.pdiparams").write_bytes(b"half")
    await bench.start()
    await bench.step()
    assert bench.status().version is None
    assert bench.status().reason.startswith("version 2 cannot be read: double/2: inference.pdi")
    assert bench.registry.index()[0].reason.startswith("canary: cannot be read: double/2: ")
    (model / "2" / "inference.pdiparams").write_bytes(bytes(range(256)) * 8)
    bench.clock.advance(RETRY_SECONDS)
    await bench.step()
    assert bench.status().state == "testing"
    assert bench.registry.index()[0].reason == "canary: testing"


async def test_an_unreadable_version_is_shown_instead_of_an_older_trial(on_trial: Bench) -> None:
    on_trial.publish(3)
    model = on_trial.root / "models" / "double"
    (model / "3" / "inference.pdiparams").write_bytes(b"half")
    await on_trial.registry.load("double", changed={3})
    await on_trial.step()
    assert on_trial.status().reason.startswith("version 3 cannot be read: ")
    assert on_trial.status().state is None
    states = [(row.version, row.state) for row in on_trial.control.statuses()]
    assert states == [(2, "testing")]  # in /metrics, each series has a version and a state


async def test_a_version_with_another_tokenizer_cannot_be_compared(bench: Bench) -> None:
    model = bench.write(1, 2)
    for version, text in ((1, "old"), (2, "new")):
        (model / str(version) / "tokenizer.json").write_text(text, "utf-8")
        write_manifest(model / str(version))
    await bench.start()
    await bench.step()
    status = bench.status()
    assert status.state == "rejected"
    assert status.reason.startswith("its tokenizer.json differs from that of version 1")


async def test_a_trial_without_a_verdict_ends(on_trial: Bench) -> None:
    on_trial.clock.advance(23.9 * 3600)
    await on_trial.requests(3)
    assert on_trial.status().state == "testing"
    on_trial.clock.advance(0.2 * 3600)
    await on_trial.step()
    status = on_trial.status()
    assert (status.state, on_trial.served()) == ("rejected", [1])
    assert status.reason.startswith("undecided after 24 h: agreement 1.000")


async def test_a_version_may_wait_for_a_person(bench: Bench) -> None:
    bench.write(1, 2, policy=POLICY + 'then = "wait"\n')
    await bench.start()
    await bench.step()
    status = await bench.requests(60)
    assert (status.state, status.compared, bench.served()) == ("passed", 40, [1])
    assert bench.beside.open() == 0
    await bench.control.promote("double")
    assert (bench.status().state, bench.status().by, bench.served()) == ("promoted", "person", [2])


async def test_a_rejected_version_stays_unloaded_until_its_files_change(on_trial: Bench) -> None:
    on_trial.beside.of(2).behaviour = nudged
    await on_trial.requests(40)
    on_trial.beside.of(2).behaviour = doubled
    await on_trial.registry.load("double")
    await on_trial.step()
    await on_trial.stop()
    await on_trial.start()
    await on_trial.step()
    assert (on_trial.status().state, on_trial.served()) == ("rejected", [1])
    program = on_trial.root / "models" / "double" / "2" / "inference.json"
    program.write_bytes(b'{"program": 2}')
    write_manifest(program.parent)
    await on_trial.registry.load("double")
    await on_trial.step()
    assert on_trial.status().state == "testing"


async def test_the_newest_version_is_the_one_on_trial(on_trial: Bench) -> None:
    await on_trial.requests(10)
    on_trial.publish(3)
    await on_trial.registry.load("double", changed=[3])
    await on_trial.step()
    status = on_trial.status()
    assert (status.version, status.compared, on_trial.served()) == (3, 0, [1])
    assert on_trial.beside.open() == 1
    assert (await on_trial.requests(40)).serving == 3


@pytest.mark.parametrize("killed", [False, True])
async def test_a_trial_goes_on_after_a_restart(on_trial: Bench, killed: bool) -> None:
    """A killed server loses the evidence of its last seconds."""
    await on_trial.requests(20)
    on_trial.clock.advance(STORE_SECONDS)
    await on_trial.requests(5)
    await on_trial.stop(killed=killed)
    await on_trial.start()
    await on_trial.step()
    compared = 21 if killed else 25
    assert (on_trial.status().compared, on_trial.served()) == (compared, [1])
    assert [row.compared for row in on_trial.status().history] == [*range(1, compared + 1)]
    assert (await on_trial.requests(39 - compared)).state == "testing"
    assert (await on_trial.requests(1)).state == "promoted"


async def test_evidence_against_another_version_does_not_count(on_trial: Bench) -> None:
    await on_trial.requests(20)
    on_trial.publish(3)
    await on_trial.registry.load("double", changed=[3])
    await on_trial.step()
    await on_trial.control.promote("double")
    on_trial.publish(4)
    await on_trial.registry.load("double", changed=[4])
    await on_trial.step()
    status = on_trial.status()
    assert (status.version, status.current, status.compared) == (4, 3, 0)


async def test_a_disk_that_is_full_costs_only_what_it_cannot_store(
    on_trial: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """The verdict counts until the end of this server; the next one judges again."""
    on_trial.state.unlink()
    on_trial.state.parent.rmdir()
    on_trial.state.parent.write_text("a file where a directory should be")
    assert (await on_trial.requests(40)).state == "promoted"
    assert on_trial.served() == [2]
    assert caplog.text.count("PADDLEPOOL_STATE_FILE") == 1
    await on_trial.stop()
    await on_trial.start()
    await on_trial.step()
    assert (on_trial.status().state, on_trial.served()) == ("testing", [1])


async def test_what_a_full_disk_refused_is_written_when_there_is_room(on_trial: Bench) -> None:
    on_trial.state.unlink()
    on_trial.state.parent.rmdir()
    on_trial.state.parent.write_text("a file where a directory should be")
    await on_trial.control.promote("double")
    on_trial.state.parent.unlink()
    await on_trial.step()
    await on_trial.stop(killed=True)
    await on_trial.start()
    assert (on_trial.status().state, on_trial.served()) == ("promoted", [2])


async def test_a_model_that_is_unloaded_is_not_judged(on_trial: Bench) -> None:
    await on_trial.requests(3)
    await on_trial.registry.unload("double")
    assert not await on_trial.step()
    assert on_trial.beside.open() == 0


async def test_a_sample_is_of_the_current_version_and_one_at_a_time(on_trial: Bench) -> None:
    [served] = on_trial.registry.served()
    assert on_trial.judge.offer(served, {})
    assert not on_trial.judge.offer(served, {})
    assert on_trial.judge.waiting()


async def test_a_reload_of_the_current_version_changes_nothing(on_trial: Bench) -> None:
    await on_trial.requests(20)
    await on_trial.registry.load("double")
    await on_trial.step()
    status = await on_trial.requests(20)
    assert (status.state, status.compared) == ("promoted", 40)
