"""The default group is measured, chosen and put in place; whatever happens meanwhile."""

import asyncio
import contextlib
import errno
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddlepool.contracts.errors import ModelNotReady, WorkerCrashed
from paddlepool.contracts.ports import PredictorSpec
from paddlepool.contracts.status import Choice
from paddlepool.engine.registry.model import ServedModel
from paddlepool.evidence.live.chooser import MORE_ROUNDS, RETRY_SECONDS, Chooser, Choosing
from tests.engine.fakes import (
    Crash,
    FakePredictor,
    ManualClock,
    doubled,
    failing,
    infer,
    open_registry,
)
from tests.evidence.live.fakes import Live, PacedFactory
from tests.model_files import (
    ON_DEMAND,
    add_to_config,
    write_config,
    write_model,
    write_version,
)
from tests.model_files import group as table
from tests.ran import eventually

NOW = 1_795_000_000.0

AUTO = 'default_group = "auto"\n' + table("first", "count = 2", "options = { seconds = 1.0 }")
FAST = table("fast", ON_DEMAND, "options = { seconds = 0.5, resident = 30_000_000 }")


def group(name: str, *lines: str, **options: object) -> str:
    """One that starts on demand, with these lines and options."""
    pairs = ", ".join(f"{key} = {value!r}".replace("'", '"') for key, value in options.items())
    return table(name, ON_DEMAND, *lines, f"options = {{ {pairs} }}")


async def choose_one(chooser: Chooser) -> bool:
    """One step, in a thread as the server does it."""
    return await asyncio.to_thread(chooser.choose_one)


async def conclude(chooser: Chooser) -> None:
    while await choose_one(chooser):
        pass


class Bench:
    """A registry over model `double`, and a chooser whose predictors are as fast as they say."""

    def __init__(self, root: Path, live: Live) -> None:
        self.root, self.gate = root, live.gate
        self.factory, self.tried = PacedFactory(), PacedFactory()  # that serve, that are measured
        self.stored: list[Choice] = []
        self.clock = ManualClock()
        self.free_bytes = 1 << 40
        self.beside = replace(live.predictors, open_predictor=self.tried)
        self.registry = open_registry(self.root, self.factory)

    async def load(self, groups: str, *, first: str = AUTO, start: Choice | None = None) -> None:
        write_model(self.root / "double", first + groups)
        if start is not None:
            self.registry = open_registry(
                self.root, self.factory, stored_choice=lambda _files: start
            )
        await self.registry.load_all()

    def chooser(self, precision: Choosing = "auto") -> Chooser:
        chooser = Chooser(
            self.registry,
            self.beside,
            precision=precision,
            store=lambda _files, choice: self.stored.append(choice),
            clock=self.clock,
            wall_clock=lambda: NOW,
            free_bytes=lambda: self.free_bytes,
        )
        chooser.loop = asyncio.get_running_loop()
        return chooser

    async def choose(self, precision: Choosing = "auto") -> Choice:
        await conclude(self.chooser(precision))
        return self.served().choice

    def served(self) -> ServedModel:
        [model] = self.registry.served()
        return model

    def candidate(self, name: str) -> str:
        candidates = self.served().choice.candidates
        [reason] = [candidate.reason for candidate in candidates if candidate.group == name]
        return reason

    async def served_by(self, group: str | None = None) -> str:
        """The group that runs a request."""
        return (await infer(self.registry, group=group)).group


async def begun(bench: Bench, groups: str) -> Chooser:
    """A chooser that has tried the first of these candidates."""
    await bench.load(groups)
    chooser = bench.chooser()
    assert await choose_one(chooser)
    return chooser


@pytest.fixture
async def bench(tmp_path: Path, live: Live) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path / "auto", live)
    yield bench
    await bench.registry.close()


@pytest.mark.parametrize(("seconds", "chosen"), [(0.5, "inherited"), (2.0, "first")])
async def test_a_group_of_an_earlier_version_is_measured_and_may_lose_its_place(
    bench: Bench, seconds: float, chosen: str
) -> None:
    """It is compared with the first group like every other one."""
    start = Choice(group="inherited", by="start", reason="version 1 was served by it")
    await bench.load(group("inherited", seconds=seconds), start=start)
    assert await bench.served_by() == "inherited"
    choice = await bench.choose()
    assert (choice.group, choice.by) == (chosen, "measured")
    assert bench.stored == [choice]
    assert await bench.served_by() == chosen


async def test_the_fastest_candidate_takes_the_place_of_the_first(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """The one before is stopped, and still there for who names it."""
    await bench.load(group("slow", seconds=2.0) + FAST + group("better", seconds=0.8))
    assert bench.served().choice.by == "start"
    assert await bench.served_by() == "first"
    with caplog.at_level(logging.INFO):
        choice = await bench.choose()
    assert (choice.group, choice.by, choice.at) == ("fast", "measured", NOW)
    assert "2.00 times the throughput of first (2.00 to 2.00" in choice.reason
    assert "30 MB a process" in choice.reason
    assert bench.stored == [choice]
    assert await bench.served_by() == "fast"
    status = {status.name: status for status in bench.served().groups()}
    assert status["fast"].count == 2
    assert not status["first"].started
    assert await bench.served_by("first") == "first"
    assert all(predictor.closed.is_set() for predictor in bench.tried.opened)
    assert bench.candidate("slow") == "takes 2.00 times as long as first"
    [line] = [line for line in caplog.messages if "answers by default" in line]
    assert "double@1: fast answers by default" in line
    assert "better: 1.25 times the throughput" in line


async def test_a_gain_below_a_tenth_is_no_reason_to_change(bench: Bench) -> None:
    """The first group is then the choice, and is kept, too: the next start need not measure."""
    await bench.load(group("hardly", seconds=0.95))
    choice = await bench.choose()
    assert (choice.group, choice.by) == ("first", "measured")
    assert choice.reason == "nothing is clearly faster than first"
    assert bench.stored == [choice]


async def test_a_candidate_whose_runs_are_noisy_is_not_chosen(bench: Bench) -> None:
    """Its whole interval must be above the gain; it is measured again later."""
    alone = AUTO.replace("count = 2", "count = 1")  # of two, one would make up for the other
    await bench.load(group("noisy", seconds=0.9, swing=1.4), first=alone)
    choice = await bench.choose()
    assert bench.candidate("noisy").startswith("too noisy to tell: ")
    assert (choice.group, choice.by) == ("first", "start")


async def test_of_equals_full_precision_and_little_memory_win(bench: Bench) -> None:
    await bench.load(
        group("low", "budget = { mean_difference = 1.0 }", seconds=0.49, resident=10_000_000)
        + group("heavy", seconds=0.5, resident=90_000_000)
        + group("light", seconds=0.51, resident=20_000_000)
    )
    assert (await bench.choose()).group == "light"


async def test_within_its_budget_a_lower_precision_is_chosen(bench: Bench) -> None:
    await bench.load(group("low", "budget = { mean_difference = 0.5 }", seconds=0.5, off=0.25))
    choice = await bench.choose()
    assert choice.group == "low"
    [candidate] = choice.candidates
    assert candidate.largest_difference == 0.25
    assert candidate.mean_difference == pytest.approx(0.25)
    assert candidate.agreement is None  # the model has no task


async def test_exact_admits_full_precision_only(bench: Bench) -> None:
    """No group with a budget, and none that differs from the first by more than 0.0001."""
    await bench.load(
        group("low", "budget = { mean_difference = 0.5 }", seconds=0.2)
        + group("wide", "tolerance = 0.5", seconds=0.2, off=0.001)
        + group("same", seconds=0.5, off=0.00001)
    )
    assert (await bench.choose("exact")).group == "same"
    assert bench.candidate("low") == "it has a lower precision, which exact excludes"
    assert bench.candidate("wide") == "differs by 0.001 from first; exact allows 0.0001"


async def test_groups_that_cannot_run_here_say_why(bench: Bench) -> None:
    await bench.load(
        group("bf16", seconds=0.1, refuse="this processor has no fast bfloat16")
        + group("wide", "threads = 3", seconds=0.1)
        + group("hidden", "candidate = false", seconds=0.1)
    )
    assert (await bench.choose()).group == "first"
    assert bench.candidate("bf16") == "cannot start: this processor has no fast bfloat16"
    assert bench.candidate("wide") == "it takes 3 threads, more than first has"
    assert [candidate.group for candidate in bench.served().choice.candidates] == ["bf16", "wide"]


@pytest.mark.parametrize(
    ("processes", "chosen", "count"),
    [(2, "pair", 2), (8, "first", 8)],
    ids=["all at once", "too many to run at once"],
)
async def test_processes_of_two_threads_are_measured_on_the_same_cores(
    bench: Bench, processes: int, chosen: str, count: int
) -> None:
    """As many as before take over, where so many have been measured beside each other."""
    first = AUTO.replace("count = 2", f"count = {processes}")
    await bench.load(group("pair", "threads = 2", seconds=0.8), first=first)
    assert (await bench.choose()).group == chosen
    assert bench.served().config.group(chosen).count == count
    assert bench.registry.budget().threads == processes
    assert len(bench.tried.opened) == 2 * min(processes, 4)


async def test_a_system_without_a_process_to_give_is_asked_again(bench: Bench) -> None:
    await bench.load(FAST + group("other", seconds=0.7))
    factory, lacking = bench.tried, [True]

    def open_predictor(spec: PredictorSpec, **options: Any) -> FakePredictor:
        if spec.options["seconds"] == 0.5 and lacking:
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        return factory(spec, **options)

    bench.beside = replace(bench.beside, open_predictor=open_predictor)
    chooser = bench.chooser()
    await conclude(chooser)
    assert bench.candidate("fast") == "cannot start: Resource temporarily unavailable"
    assert await bench.served_by() == "other"
    lacking.clear()
    bench.clock.advance(RETRY_SECONDS + 1)
    await conclude(chooser)
    assert await bench.served_by() == "fast"


async def test_a_run_that_fails_is_not_called_a_refusal(bench: Bench) -> None:
    """The group has started: what it could not do is said, and not that it cannot start."""
    await bench.load(group("broken", seconds=0.1, fails="no result within 60.0 s"))
    assert (await bench.choose()).group == "first"
    assert bench.candidate("broken") == "its runs failed: no result within 60.0 s"


@pytest.mark.parametrize(
    ("where", "reason"),
    [("selftest", "cannot start: killed"), ("behaviour", "its runs failed: killed")],
    ids=["while it opens", "in a run"],
)
@pytest.mark.parametrize(("deaths", "chosen"), [(1, "fast"), (2, "first")], ids=["once", "twice"])
async def test_a_process_that_dies_once_decides_nothing(
    bench: Bench, where: str, reason: str, deaths: int, chosen: str
) -> None:
    """The system may have ended it for want of memory; one that dies again is its group's doing."""
    await bench.load(FAST)
    dying = failing(lambda: WorkerCrashed("killed"), times=deaths)
    setattr(bench.tried, where, dying)
    chooser = bench.chooser()
    await conclude(chooser)
    assert (bench.served().choice.by, bench.candidate("fast")) == ("start", reason)
    assert bench.stored == []
    bench.clock.advance(RETRY_SECONDS + 1)
    await conclude(chooser)
    choice = bench.served().choice
    assert (choice.by, choice.group) == ("measured", chosen)
    assert bench.stored == [choice]


async def test_what_fails_without_the_model_s_files_is_tried_again(bench: Bench) -> None:
    """A repository may be gone for a moment; the failures of that time are not kept."""
    await bench.load(FAST + group("faster", seconds=0.25))
    chooser = bench.chooser()
    assert await choose_one(chooser)
    assert bench.served().choice.candidates[0].fit
    version = bench.root / "double" / "1"
    version.rename(bench.root / "elsewhere")
    await conclude(chooser)
    assert bench.candidate("fast").startswith("cannot take over: ")
    assert bench.candidate("faster").startswith("cannot start: ")
    assert (bench.served().choice.by, bench.stored) == ("start", [])
    (bench.root / "elsewhere").rename(version)
    bench.clock.advance(RETRY_SECONDS + 1)
    await conclude(chooser)
    assert [choice.group for choice in bench.stored] == ["faster"]


def interrupting(bench: Bench) -> Callable[[Any], Any]:
    """A behaviour of predictors beside the service: a request comes in the middle of each run."""

    def behaviour(inputs: Any) -> Any:
        bench.gate.began()
        bench.gate.ended()
        return {"y": 2 * inputs["x"]}

    return behaviour


async def test_what_was_not_decided_is_measured_again_beside_what_serves(bench: Bench) -> None:
    """A candidate that requests interrupted may be better than the one that they left alone."""
    chooser = await begun(bench, group("middling", seconds=0.7) + FAST)
    bench.tried.behaviour = interrupting(bench)
    assert await choose_one(chooser)
    await conclude(chooser)
    assert await bench.served_by() == "middling"
    assert bench.candidate("fast").startswith("requests left time for only 0")
    bench.tried.behaviour = doubled
    bench.clock.advance(RETRY_SECONDS + 1)
    await conclude(chooser)
    choice = bench.served().choice
    assert (await bench.served_by(), choice.group, choice.by) == ("fast", "fast", "measured")
    assert "2.00 times the throughput of first" in choice.reason
    assert [choice.group for choice in bench.stored] == ["middling", "fast"]


@pytest.mark.nightly
async def test_what_stays_undecided_is_left_at_last(bench: Bench) -> None:
    chooser = await begun(bench, group("middling", seconds=0.7) + FAST)
    bench.tried.behaviour = interrupting(bench)
    for _ in range(MORE_ROUNDS + 1):
        await conclude(chooser)
        bench.clock.advance(RETRY_SECONDS + 1)
    opened = len(bench.tried.opened)
    assert not await choose_one(chooser)
    assert (len(bench.tried.opened), await bench.served_by()) == (opened, "middling")


async def test_no_more_is_opened_than_fits_beside(bench: Bench) -> None:
    """The first group's processes hold 1 MiB each; none is opened at the system's cost."""
    await bench.load(FAST)
    bench.free_bytes = int(3.9 * (1 << 20))  # of two processes and a quarter on top: 2.5 MiB
    await choose_one(bench.chooser())
    assert len(bench.tried.opened) == 2
    bench.free_bytes = 2 << 20
    choice = await bench.choose()
    assert len(bench.tried.opened) == 2
    assert (choice.group, choice.by) == ("first", "start")
    assert bench.candidate("fast") == "not enough memory is free to measure it"
    assert bench.stored == []


async def test_a_winner_that_does_not_fit_beside_the_first_does_not_take_over(bench: Bench) -> None:
    chooser = await begun(bench, FAST)
    bench.free_bytes = 50_000_000
    await conclude(chooser)
    why = "cannot take over: 60 MB are needed to open it, 50 MB are free"
    assert (await bench.served_by(), bench.candidate("fast")) == ("first", why)


async def test_a_reload_in_the_middle_begins_anew(bench: Bench) -> None:
    """What was measured of the version before is not put in the place of the new one."""
    chooser = await begun(bench, FAST + group("other", seconds=0.7))
    before = bench.served()
    await bench.registry.load("double")
    assert not await bench.registry.adopt(before, replace(before.choice, group="fast"))
    assert await bench.served_by() == "first"
    await conclude(chooser)
    assert await bench.served_by() == "fast"


async def test_a_model_that_is_unloaded_in_the_middle_stays_unloaded(bench: Bench) -> None:
    chooser = await begun(bench, FAST)
    await bench.registry.unload("double")
    assert not await choose_one(chooser)
    assert bench.registry.served() == ()
    opened = [*bench.factory.opened, *bench.tried.opened]
    assert all(predictor.closed.is_set() for predictor in opened)


async def test_a_winner_that_cannot_take_over_is_a_candidate_no_longer(bench: Bench) -> None:
    chooser = await begun(bench, FAST + group("other", seconds=0.7))
    assert await choose_one(chooser)

    bench.factory.gone[0.5] = "no memory left"
    await conclude(chooser)
    assert bench.candidate("fast") == "cannot take over: no memory left"
    assert await bench.served_by() == "other"


@pytest.mark.slow
async def test_a_default_group_that_keeps_crashing_gives_way(bench: Bench) -> None:
    await bench.load(FAST + group("other", seconds=0.7))
    chooser = bench.chooser()
    await conclude(chooser)
    assert await bench.served_by() == "fast"
    bench.factory.behaviour = failing(lambda: Crash("an instruction that this processor lacks"))
    while not any("keep crashing" in status.reason for status in bench.served().groups()):
        with contextlib.suppress(Exception):
            await bench.served_by()
    bench.factory.behaviour = doubled
    assert await choose_one(chooser)
    assert await bench.served_by() == "first"
    assert "fast was the default group and kept crashing" in bench.served().choice.reason
    await conclude(chooser)
    assert await bench.served_by() == "other"
    assert bench.candidate("fast") == "fast was the default group and kept crashing"


async def test_a_model_on_demand_is_measured_once_it_is_used(bench: Bench) -> None:
    first = AUTO + ON_DEMAND + "\n"
    await bench.load(FAST, first=first)
    chooser = bench.chooser()
    assert not await choose_one(chooser)
    assert not bench.tried.opened
    assert await bench.served_by() == "first"
    await conclude(chooser)
    assert bench.served().config.starts_on_demand
    # The processes of the group that was used are replaced by those of the one that was chosen.
    assert bench.served().running
    assert await bench.served_by() == "fast"


async def test_a_choice_on_demand_that_cannot_start_gives_way(bench: Bench) -> None:
    kept = Choice(group="fast", by="kept", reason="measured before this start")
    bench.registry = open_registry(bench.root, bench.factory, stored_choice=lambda _files: kept)
    bench.factory.gone[0.5] = "no such device"
    await bench.load(FAST, first=AUTO + ON_DEMAND + "\n")
    with pytest.raises(ModelNotReady, match="'fast' cannot start"):
        await bench.served_by()
    await eventually(lambda: bench.served().config.default_group == "first")
    assert await bench.served_by() == "first"
    reason = "fast, which was chosen before, cannot start: no such device"
    assert bench.served().choice.reason == reason


async def test_off_chooses_nothing(bench: Bench) -> None:
    """PADDLEPOOL_PROVE_GROUPS=off: nothing is run besides the requests."""
    await bench.load(FAST)
    assert not await choose_one(bench.chooser("off"))
    assert len(bench.factory.opened) == 2


async def test_no_group_is_chosen_on_one_pixel(bench: Bench) -> None:
    """Times of such a run are those of a call, not of the model; a [[warmup]] would tell more."""
    x = np.ones((1, 1), np.float32)
    write_config(bench.root / "double", AUTO + FAST)
    write_version(bench.root / "double" / "1", inputs={"x": x}, outputs={"y": 2 * x})
    await bench.registry.load_all()
    assert (await bench.choose()).group == "first"
    assert "too small to tell: x [1, 1]" in bench.candidate("fast")
    assert not bench.tried.opened
    add_to_config(bench.root / "double", "[[warmup]]\nshapes = { x = [1, 8] }\n")
    await bench.registry.load_all()
    assert (await bench.choose()).group == "fast"
