"""`paddlepool tune`: what is tried, what is chosen and why, what is written."""

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from paddlepool.contracts.errors import ConfigError
from paddlepool.evidence.comparison.search import (
    ALONE_RUNS,
    Configuration,
    Outcome,
    Search,
    bucket_configurations,
    choose,
    thread_configurations,
    write_group,
)
from paddlepool.models.repository.layout import ModelFiles
from tests.engine.fakes import FakeFactory


def outcome(
    configuration: Configuration, per_second: float, p95: float, *, alone: float = 0.2
) -> Outcome:
    return Outcome(
        configuration=configuration,
        clients=2,
        per_second=per_second,
        p95_seconds=p95,
        alone_seconds=alone,
        resident_bytes=configuration.count,
    )


def search_of(files: ModelFiles, factory: FakeFactory, **more: Any) -> Search:
    return Search(
        files=files,
        cores=2,
        seconds=0.3,
        open_predictor=factory,
        comparison_of=lambda info: None,
        **more,
    )


PAIR = Configuration(batch=1, threads=1, count=2)
WIDE = Configuration(batch=1, threads=2, count=1)
ALONE = Configuration(batch=1, threads=1, count=1)


def test_every_split_of_the_cores_is_tried() -> None:
    assert thread_configurations(2, buckets=()) == [ALONE, PAIR, WIDE]
    four = [(c.threads, c.count) for c in thread_configurations(4, buckets=())]
    assert four == [(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (4, 1)]
    assert (3, 1) in [(c.threads, c.count) for c in thread_configurations(3, buckets=())]


def test_bucket_sets_keep_the_longest_text() -> None:
    """One bucket, every other one, and one between each two; nothing for pictures."""
    best = Configuration(batch=1, threads=1, count=2, buckets=(16, 32, 64, 128))
    tried = [configuration.buckets for configuration in bucket_configurations(best)]
    assert tried == [(16, 24, 32, 48, 64, 96, 128), (32, 128), (128,)]
    assert bucket_configurations(PAIR) == []


@pytest.mark.parametrize(
    ("outcomes", "chosen"),
    [
        pytest.param(
            [outcome(ALONE, 2, 0.9), outcome(PAIR, 4, 0.5), outcome(WIDE, 3, 0.5)],
            PAIR,
            id="the most per second",
        ),
        pytest.param(
            [outcome(PAIR, 4.0, 0.5), outcome(WIDE, 3.6, 0.5, alone=0.1)],
            WIDE,
            id="a single request is much faster",
        ),
        pytest.param(
            [outcome(PAIR, 4.0, 0.5), outcome(Configuration(4, 1, 2), 4.2, 0.9, alone=0.15)],
            PAIR,
            id="of equals, no batching",
        ),
        pytest.param(
            [outcome(PAIR, 4.0, 1.5), outcome(WIDE, 2.0, 0.5)], WIDE, id="within the latency only"
        ),
        pytest.param([outcome(PAIR, 4.0, 1.5)], None, id="nothing is fast enough"),
    ],
)
def test_the_choice(outcomes: list[Outcome], chosen: Configuration | None) -> None:
    """The rule of "auto", within a p95 of 1 s."""
    best = choose(outcomes, p95_seconds=1.0)
    assert (best.configuration if best else None) == chosen


async def test_load_goes_through_the_engine(double: ModelFiles) -> None:
    factory = FakeFactory()
    async with search_of(double, factory, p95_seconds=1.0).opened(PAIR) as loaded:
        await loaded.run_alone()
        await loaded.run(0.3)
        measured = loaded.outcome()
    assert len(factory.opened) == 2
    assert measured.clients == 2
    warm_ups = len(factory.opened) + 1  # one instance runs it again, to measure it
    runs = sum(len(predictor.timeouts) for predictor in factory.opened) - warm_ups
    assert measured.per_second * loaded.seconds == pytest.approx(runs - ALONE_RUNS)
    assert 0 < measured.p95_seconds < 1
    assert 0 < measured.alone_seconds < 1


@pytest.mark.slow
async def test_a_search_runs_in_stages_and_closes_what_it_opened(
    double: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Splits first, then batches of the best; every turn moves the bar."""
    factory, bar = FakeFactory(), MagicMock()
    monkeypatch.setattr("paddlepool.evidence.comparison.search.tqdm", bar)
    chosen, outcomes = await search_of(double, factory, p95_seconds=10.0).run()
    assert chosen in outcomes
    assert [outcome.configuration for outcome in outcomes[:3]] == [ALONE, PAIR, WIDE]
    assert {outcome.configuration.batch for outcome in outcomes[3:]} == {2, 4, 8}
    assert bar().__enter__().update.call_count == 3 * len(outcomes)
    assert all(predictor.closed.is_set() for predictor in factory.opened)


@pytest.mark.slow
async def test_rows_that_are_no_batch_are_not_batched(
    double: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sealing has found that a row's outputs depend on the others; a job is a whole request."""
    monkeypatch.setattr("paddlepool.evidence.comparison.search.tqdm", MagicMock())
    batching = double.config.dynamic_batching.model_copy(update={"max_batch_size": 0})
    config = double.config.model_copy(update={"dynamic_batching": batching})
    search = search_of(replace(double, config=config), FakeFactory(), p95_seconds=10.0)
    _, outcomes = await search.run()
    assert {outcome.configuration.batch for outcome in outcomes} == {0}
    assert "no batching" in str(outcomes[0].configuration)


def test_a_program_with_a_fixed_first_axis_is_not_batched(double: ModelFiles) -> None:
    batched = search_of(double, FakeFactory(), p95_seconds=10.0)
    assert batched._rows_are_a_batch()
    fixed = tuple(replace(one, shape=(1, *one.shape[1:])) for one in double.manifest.inputs)
    alone = replace(double, manifest=replace(double.manifest, inputs=fixed))
    assert not replace(batched, files=alone)._rows_are_a_batch()


CONFIG = """\
# how this model is served
default_group = "main"  # the one that answers

[dynamic_batching]
max_batch_size = 1      # measured
max_queue_size = 7

[[instance_group]]
name = "main"
backend = "fake"
count = 1

[[instance_group]]
name = "other"
backend = "fake"
threads = 3

[[warmup]]
shapes = { x = [1, 16] }

[parameters]
buckets = [16]
pad_id = 0
"""


def test_only_what_was_tuned_is_written(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(CONFIG, "utf-8")
    write_group(path, Configuration(4, 2, 3, (16, 64)), inputs=["x"])
    text = path.read_text("utf-8")
    assert "# how this model is served" in text
    assert "# the one that answers" in text
    found = tomllib.loads(text)
    assert found["dynamic_batching"] == {"max_batch_size": 4, "max_queue_size": 7}
    assert found["instance_group"] == [
        {"name": "main", "backend": "fake", "count": 3, "threads": 2},
        {"name": "other", "backend": "fake", "threads": 3},
    ]
    assert found["warmup"] == [{"shapes": {"x": [1, 16]}}, {"shapes": {"x": [1, 64]}}]
    assert found["parameters"] == {"buckets": [16, 64], "pad_id": 0}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("before", "batch"), [("max_batch_size = 0\n", 0), ("", 1)])
def test_a_batch_size_that_stays_is_not_written(tmp_path: Path, before: str, batch: int) -> None:
    path = tmp_path / "config.toml"
    path.write_text(CONFIG.replace("max_batch_size = 1      # measured\n", before), "utf-8")
    write_group(path, Configuration(batch, 2, 3), inputs=["x"])
    written = {"max_batch_size": 0} if before else {}
    found = tomllib.loads(path.read_text("utf-8"))
    assert found["dynamic_batching"] == written | {"max_queue_size": 7}


def test_without_a_file_there_is_nothing_to_write_to(tmp_path: Path) -> None:
    """The defaults of a missing config.toml cannot be edited."""
    with pytest.raises(ConfigError, match=r"has no config\.toml"):
        write_group(tmp_path / "config.toml", PAIR, inputs=[])
