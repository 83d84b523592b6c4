"""What a person may do: promote, reject, roll back; and which version serves at the start."""

import asyncio
import shutil
from pathlib import Path

import pytest

from paddlepool.contracts.errors import CanaryConflict, ModelLoadFailed, ModelNotFound
from paddlepool.contracts.status import Trial
from paddlepool.engine.registry.promotions import MAX_TRIALS, Promotions, Serving, promotions_path
from paddlepool.evidence.canary.judge import STORE_SECONDS
from tests.engine.fakes import Gate, eventually, infer
from tests.evidence.canary.conftest import POLICY, Bench
from tests.model_files import write_config


@pytest.mark.parametrize(
    ("versions", "served"), [((1,), 1), ((1, 2), 1), ((1, 2, 5), 2)], ids=["one", "two", "three"]
)
async def test_the_version_before_the_newest_serves_first(
    bench: Bench, versions: tuple[int, ...], served: int
) -> None:
    """A server that remembers nothing serves no version that has not proven itself."""
    bench.write(*versions)
    await bench.start()
    assert bench.served() == [served]
    newest = [canary.version for canary in bench.registry.canaries.all()]
    assert newest == [version for version in versions[-1:] if version != served]


async def test_a_promoted_version_serves_after_a_restart(on_trial: Bench) -> None:
    await on_trial.control.promote("double")
    await on_trial.stop()
    await on_trial.start()
    assert on_trial.served() == [2]
    assert on_trial.status().reason == "promoted by a person"
    assert on_trial.registry.canaries.all() == ()


async def test_a_server_that_is_killed_in_a_promotion_has_promoted(on_trial: Bench) -> None:
    on_trial.promotions.serve("double", Serving(model="double", version=2, previous=1, at=1.0))
    await on_trial.stop(killed=True)
    await on_trial.start()
    status = on_trial.status()
    assert (status.state, status.serving, on_trial.served()) == ("promoted", 2, [2])
    await on_trial.control.rollback("double")
    assert (on_trial.status().state, on_trial.served()) == ("rejected", [1])


async def test_a_promotion_loses_no_request(on_trial: Bench) -> None:
    """One that is running when the swap happens is answered by the version where it began."""
    gate = Gate()
    on_trial.serving.behaviour = gate
    waiting = asyncio.create_task(infer(on_trial.registry))
    await gate.entered()
    promoting = asyncio.create_task(on_trial.control.promote("double"))
    await eventually(lambda: on_trial.served() == [2])
    gate.open()
    await promoting
    assert (await waiting).version == 1
    assert (await infer(on_trial.registry)).version == 2


async def test_a_version_that_cannot_be_loaded_is_rejected(on_trial: Bench) -> None:
    on_trial.serving.selftest = lambda inputs: {"y": inputs["x"]}
    with pytest.raises(ModelLoadFailed, match="self-test"):
        await on_trial.control.promote("double")
    status = on_trial.status()
    assert (status.state, status.serving, on_trial.served()) == ("rejected", 1, [1])
    assert status.reason.startswith("it cannot be loaded: self-test")


async def test_a_rollback_returns_to_the_version_before(on_trial: Bench) -> None:
    await on_trial.control.promote("double")
    await on_trial.control.rollback("double")
    await on_trial.step()
    status = on_trial.status()
    assert (status.state, status.reason) == ("rejected", "rolled back by a person")
    assert (status.serving, status.previous, on_trial.served()) == (1, None, [1])
    with pytest.raises(CanaryConflict, match="no version of double was replaced"):
        await on_trial.control.rollback("double")
    await on_trial.control.promote("double")
    assert on_trial.served() == [2]


async def test_a_rollback_to_a_version_that_is_gone_changes_nothing(on_trial: Bench) -> None:
    await on_trial.control.promote("double")
    (on_trial.root / "models" / "double" / "1" / "manifest.json").unlink()
    with pytest.raises(ModelLoadFailed):
        await on_trial.control.rollback("double")
    assert (on_trial.served(), on_trial.status().serving) == ([2], 2)


async def test_a_person_decides_before_the_judge(on_trial: Bench) -> None:
    await on_trial.requests(5)
    await on_trial.control.reject("double")
    assert on_trial.status().reason == "rejected by a person"
    with pytest.raises(CanaryConflict, match="version 2 of double is rejected"):
        await on_trial.control.reject("double")
    await on_trial.step()
    assert on_trial.beside.open() == 0


async def test_models_without_a_trial(bench: Bench) -> None:
    model = bench.write(1)
    await bench.start()
    for change in (bench.control.promote, bench.control.reject):
        with pytest.raises(CanaryConflict, match="no version of double is on trial"):
            await change("double")
    with pytest.raises(ModelNotFound):
        await bench.control.promote("missing")
    assert bench.control.statuses() == []
    text = (model / "config.toml").read_text("utf-8")
    write_config(model, text.partition("[version_policy]")[0])
    await bench.registry.load("double")
    with pytest.raises(CanaryConflict, match="the version policy of double is not canary"):
        bench.status()


async def test_the_policy_may_be_set_while_the_newest_version_serves(bench: Bench) -> None:
    model = bench.write(1, 2, policy="")
    await bench.start()
    assert bench.served() == [2]
    text = (model / "config.toml").read_text("utf-8")
    write_config(model, text + POLICY)
    await bench.registry.load("double")
    assert (bench.served(), bench.registry.canaries.all()) == ([2], ())


@pytest.mark.parametrize("absent", [True, False])
async def test_other_files_of_a_promoted_version_are_judged(on_trial: Bench, absent: bool) -> None:
    """While they are absent or on trial, the version before answers, also after a restart."""
    await on_trial.control.promote("double")
    await republish(on_trial, program=b'{"program": 2}', absent=absent)
    assert (on_trial.served(), on_trial.status().serving) == ([1], 1)
    await on_trial.step()
    assert (on_trial.status().state, on_trial.status().compared) == ("testing", 0)
    await on_trial.stop()
    await on_trial.start()
    await on_trial.step()
    assert (on_trial.served(), on_trial.status().state) == ([1], "testing")
    assert (await on_trial.requests(40)).state == "promoted"
    assert (on_trial.served(), on_trial.status().previous) == ([2], 1)
    await on_trial.stop()
    await on_trial.start()
    assert on_trial.served() == [2]


async def test_other_files_of_a_version_without_a_promotion_do_not_serve(bench: Bench) -> None:
    """Version 2 serves since the first start with this policy."""
    bench.write(1, 2, 5)
    await bench.start()
    assert bench.served() == [2]
    await republish(bench, program=b'{"program": 2}', absent=False)
    assert (bench.served(), bench.status().serving) == ([1], 1)


async def test_a_promoted_version_that_is_back_serves_at_once(on_trial: Bench) -> None:
    await on_trial.control.promote("double")
    await republish(on_trial, program=b'{"program": 1}')
    assert (on_trial.served(), on_trial.status().serving) == ([2], 2)


async def test_other_files_serve_where_there_is_no_other_version(bench: Bench) -> None:
    model = bench.write(2)
    await bench.start()
    shutil.rmtree(model / "2")
    bench.publish(2, program=b'{"program": 2}')
    await bench.registry.load("double", changed={2})
    assert (bench.served(), bench.registry.canaries.all()) == ([2], ())


async def republish(bench: Bench, program: bytes, *, absent: bool = True) -> None:
    """Publish version 2 again; with `absent`, a poll finds before that it was removed."""
    shutil.rmtree(bench.root / "models" / "double" / "2")
    if absent:
        await bench.registry.load("double", changed=())
        assert (bench.served(), bench.status().serving) == ([1], 1)
    bench.publish(2, program=program)
    await bench.registry.load("double", changed={2})


def test_few_trials_of_a_model_are_remembered(tmp_path: Path) -> None:
    promotions = Promotions(tmp_path / "trials.json")
    for number in range(MAX_TRIALS + 3):
        promotions.put(Trial(model="m", version=number, sha256="0", current=1, since=0.0))
    versions = [row.version for row in Promotions(tmp_path / "trials.json").trials("m")]
    assert versions == list(range(MAX_TRIALS + 2, 2, -1))


def test_the_file_is_beside_that_of_the_choices(tmp_path: Path) -> None:
    assert promotions_path(tmp_path / "mine.json") == tmp_path / "mine.canaries.json"
    assert promotions_path(Path("off")) is None


async def test_servers_that_share_a_file_share_the_verdict(on_trial: Bench) -> None:
    """The other one stops its own trial, and loads the version itself, also if it is never idle."""
    other = Bench(on_trial.root)
    await other.start()
    await other.step()
    await other.requests(5)
    on_trial.clock.advance(1)
    assert (await on_trial.requests(40)).state == "promoted"
    assert other.served() == [1]
    await other.control.follow()
    assert (other.served(), other.status().state) == ([2], "promoted")
    on_trial.clock.advance(1)
    await on_trial.control.rollback("double")
    opened = len(other.serving.opened)
    await other.step()
    assert (other.served(), other.status().reason) == ([1], "rolled back by a person")
    assert len(other.serving.opened) == opened  # the old version was kept
    await other.step()
    assert other.beside.open() == 0
    await other.stop()


async def test_one_replica_judges_and_the_others_follow(on_trial: Bench) -> None:
    """They open no process, serve the current version, and show the judge's figures."""
    followers = [Bench(on_trial.root, judge="judge") for _ in range(2)]
    for follower in followers:
        await follower.start()
        assert not await follower.step()
        await follower.request()
        assert (follower.status().state, follower.status().compared) == ("testing", 0)
    await on_trial.requests(20)
    on_trial.clock.advance(STORE_SECONDS)
    await on_trial.requests(1)
    for follower in followers:
        await follower.step()
        status = follower.status()
        assert (status.state, status.compared, len(status.history)) == ("testing", 21, 21)
        assert follower.served() == [1]
    await on_trial.requests(19)
    await followers[0].step()
    assert (followers[0].served(), followers[0].status().state) == ([2], "promoted")
    on_trial.clock.advance(1)
    followers[0].clock.advance(STORE_SECONDS + 2)
    await followers[0].control.rollback("double")  # a person may decide at any of them
    for server in (on_trial, followers[1]):
        await server.step()
        assert (server.served(), server.status().reason) == ([1], "rolled back by a person")
    for follower in followers:
        assert follower.beside.factories == {}
        await follower.stop()


async def test_without_its_judge_the_current_version_serves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    follower = Bench(tmp_path, judge="absent")
    follower.write(1, 2)
    await follower.start()
    for _ in range(3):
        await follower.request()
        await follower.step()
    waits = "waits for the verdict of the replica 'absent'"
    assert (follower.served(), follower.status().version) == ([1], None)
    assert follower.status().reason == f"version 2 {waits}"
    [index] = [row for row in follower.registry.index() if row.version == 2]
    assert index.reason == f"canary: {waits}"
    assert caplog.text.count(waits) == 1
    assert not follower.judge.waiting()
    judge = Bench(tmp_path)
    await judge.start()
    await judge.step()
    await follower.step()
    assert (follower.status().reason, follower.status().state) == ("", "testing")
    await judge.stop()
    await follower.stop()


async def test_servers_that_share_a_file_do_not_drop_each_others_trials(tmp_path: Path) -> None:
    one, other = Promotions(tmp_path / "trials.json"), Promotions(tmp_path / "trials.json")
    one.put(Trial(model="a", version=2, sha256="0", current=1, since=0.0))
    other.put(Trial(model="b", version=2, sha256="0", current=1, since=0.0))
    one.put(Trial(model="c", version=2, sha256="0", current=1, since=0.0))
    kept = Promotions(tmp_path / "trials.json")
    assert [len(kept.trials(model)) for model in "abc"] == [1, 1, 1]
    assert one.refresh() == {"b"}  # although put() has read it before
    assert one.refresh() == frozenset()
    other.serve("b", None)
    assert Promotions(tmp_path / "trials.json").serving("b") is None
