"""The search of `paddlepool tune`: threads and predictors first, then batches, then buckets.

Configurations get synthetic load through the server's own engine.
"""

import asyncio
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from paddlepool.contracts.errors import ConfigError
from paddlepool.contracts.ports import PredictorFactory, ServedModelInfo
from paddlepool.contracts.resources import available_memory
from paddlepool.contracts.status import Candidate
from paddlepool.contracts.tensors import Tensors
from paddlepool.engine.pool.context import EngineContext
from paddlepool.engine.registry.model import ServedModel
from paddlepool.evidence.comparison.measure import TaskComparison, choose_samples
from paddlepool.evidence.comparison.result import seconds
from paddlepool.evidence.verdict.proof import EQUAL, best_of
from paddlepool.models.repository.config import (
    AUTO,
    DynamicBatching,
    Warmup,
    load_config,
    parse_config,
)
from paddlepool.models.repository.files import write_atomically
from paddlepool.models.repository.layout import ModelFiles
from paddlepool.observability.metrics import Metrics

BATCHES = (2, 4, 8)


@dataclass(frozen=True, slots=True, order=True)
class Configuration:
    """`count` predictors of `threads` threads, with batches of up to `batch` rows.

    `batch` is 0 if config.toml has 0: the first axis is not the batch axis.
    `buckets` are the lengths to which texts are padded, ascending; empty if config.toml has none.
    """

    batch: int
    threads: int
    count: int
    buckets: tuple[int, ...] = ()

    def __str__(self) -> str:
        predictors = "predictor" if self.count == 1 else "predictors"
        threads = "thread" if self.threads == 1 else "threads"
        text = f"{self.count} {predictors} × {self.threads} {threads}"
        text += ", no batching" if self.batch <= 1 else f", batches up to {self.batch}"
        return text + (f", buckets {list(self.buckets)}" if self.buckets else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A configuration's figures under load; `alone_seconds` is the time of a single request."""

    configuration: Configuration
    clients: int
    per_second: float
    p95_seconds: float
    alone_seconds: float
    resident_bytes: int


def thread_configurations(
    cores: int, *, buckets: tuple[int, ...], batch: int = 1
) -> list[Configuration]:
    """Return ways to divide the cores among equal predictors; some leave cores idle.

    Numbers of threads and of predictors are powers of two or `cores`.
    """
    sizes = sorted({2**power for power in range(cores.bit_length())} | {cores})
    return [
        Configuration(batch=batch, threads=threads, count=count, buckets=buckets)
        for threads in sizes
        for count in sizes
        if threads * count <= cores
    ]


def bucket_configurations(best: Configuration) -> list[Configuration]:
    """Return copies of `best` with fewer or more buckets; none if `best` has no buckets.

    The buckets are the longest one alone, every other one up to the longest, or all of them and
    one halfway between each two.
    """
    lengths = best.buckets
    if not lengths:
        return []
    between = [(low + high) // 2 for low, high in pairwise(lengths)]
    every_other = lengths[::-1][::2][::-1]
    others = {lengths[-1:], every_other, tuple(sorted({*lengths, *between}))} - {lengths}
    return [replace(best, buckets=buckets) for buckets in sorted(others)]


def choose(outcomes: Sequence[Outcome], *, p95_seconds: float) -> Outcome | None:
    """Return the best outcome within the latency limit, or None if all are above it.

    The rules are those of best_of(). Among equals, configurations without batches are preferred.
    """
    by_name = {str(outcome.configuration): outcome for outcome in outcomes}
    candidates = [
        Candidate(
            group=name,
            fit=outcome.p95_seconds <= p95_seconds,
            reason="",
            gain=outcome.per_second,
            seconds=outcome.alone_seconds,
            resident_bytes=outcome.resident_bytes,
        )
        for name, outcome in by_name.items()
    ]
    batched = (name for name, outcome in by_name.items() if outcome.configuration.batch > 1)
    best = best_of(candidates, frozenset(batched))
    return None if best is None else by_name[best.group]


def explain(chosen: Outcome, outcomes: Sequence[Outcome], *, p95_seconds: float) -> list[str]:
    """Describe the choice; say why each outcome with more requests per second was not chosen."""
    lines = [
        f"{chosen.configuration}: {chosen.per_second:.2f} requests per second, "
        f"p95 {seconds(chosen.p95_seconds)}, {seconds(chosen.alone_seconds)} alone"
    ]
    for outcome in outcomes:
        gain = outcome.per_second / chosen.per_second
        if gain <= 1:
            continue
        if outcome.p95_seconds > p95_seconds:
            reason = "above the limit"
        else:
            reason = "counts as equal" if gain <= EQUAL else "a single request takes longer"
        lines.append(
            f"{outcome.configuration}: {gain - 1:+.0%} requests per second, "
            f"p95 {seconds(outcome.p95_seconds)}, {seconds(outcome.alone_seconds)} alone: {reason}"
        )
    return lines


def write_group(path: Path, configuration: Configuration, *, inputs: Sequence[str]) -> None:
    """Write a configuration to the config.toml at `path`.

    Its default group gets the count and the threads, the model the batch size and the buckets. If
    the buckets change, the warm-ups are replaced: each bucket gets one, with one row of its
    length for each of the `inputs`. Raises ConfigError if tomlkit is not installed, or if the file
    is missing, is invalid or would become so, or does not list the group; and OSError if it cannot
    be read or written.
    """
    config = load_config(path)
    with _edited(path) as document:
        import tomlkit

        group = _table(document, config.default_group, path)
        group["count"], group["threads"] = configuration.count, configuration.threads
        if configuration.batch != config.dynamic_batching.max_batch_size:
            document.setdefault("dynamic_batching", tomlkit.table())["max_batch_size"] = (
                configuration.batch
            )
        if configuration.buckets and configuration.buckets != tuple(
            config.parameters.get("buckets", ())
        ):
            document["parameters"]["buckets"] = list(configuration.buckets)
            document["warmup"] = tomlkit.aot()
            for bucket in configuration.buckets:
                shapes = tomlkit.inline_table()
                shapes.update({name: [1, bucket] for name in inputs})
                document["warmup"].append(tomlkit.table().add("shapes", shapes))


def write_default_group(path: Path, name: str) -> None:
    """Make the group `name` the default group in the config.toml at `path`.

    It then starts when the default group did, with the server or on demand. If another group was
    the default, `name` also gets as many instances as fit into the threads of that group, at least
    one, and that group starts on demand. Raises as write_group() does.
    """
    config = load_config(path)
    with _edited(path) as document:
        chosen = _table(document, name, path)
        if document.get("default_group") == AUTO:  # replace its comment, which explains "auto"
            document["default_group"].comment("by paddlepool tune; was auto")
        document["default_group"] = name
        if config.starts_on_demand:
            chosen["start"] = "on_demand"
        else:
            chosen.pop("start", None)
        if config.default_group != name:
            chosen["count"] = max(1, config.count_of_threads(name))
            _table(document, config.default_group, path)["start"] = "on_demand"


@contextmanager
def _edited(path: Path) -> Iterator[Any]:
    """Yield the file as a tomlkit document, which keeps comments; check and write it at the end.

    Raises ConfigError if tomlkit is not installed, or if the file is missing or becomes invalid,
    and OSError if it cannot be written.
    """
    try:
        import tomlkit
    except ImportError as error:
        raise ConfigError(
            "writing config.toml needs the package tomlkit (extra compare)"
        ) from error
    try:
        document = tomlkit.parse(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"{path.parent.name} has no config.toml to write to") from error
    yield document
    text = document.as_string().encode()
    parse_config(text)
    write_atomically(path, text)


def _table(document: Any, group: str, path: Path) -> Any:
    for table in document.get("instance_group", []):
        if table["name"] == group:
            return table
    raise ConfigError(f"{path.parent.name}/config.toml lists no group {group!r}")


REQUEST_SECONDS = 120.0
ALONE_RUNS = 5


@dataclass(slots=True)
class LoadedConfiguration:
    """A served configuration, and the times of its requests under synthetic load."""

    configuration: Configuration
    clients: int
    jobs: Iterator[Tensors]
    model: ServedModel
    seconds: float = 0.0
    completed: list[float] = field(default_factory=list)
    """Seconds of each request."""
    alone: list[float] = field(default_factory=list)
    """Seconds of each request that ran while no other did."""

    async def run_alone(self) -> None:
        self.alone = [await self._request() for _ in range(ALONE_RUNS)]

    async def run(self, seconds: float) -> None:
        ends = time.perf_counter() + seconds

        async def client() -> None:
            while time.perf_counter() < ends:
                self.completed.append(await self._request())

        began = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(self.clients)))
        self.seconds += time.perf_counter() - began

    async def _request(self) -> float:
        began = time.monotonic()
        await self.model.submit(next(self.jobs), deadline=began + REQUEST_SECONDS)
        return time.monotonic() - began

    def outcome(self) -> Outcome:
        return Outcome(
            configuration=self.configuration,
            clients=self.clients,
            per_second=len(self.completed) / self.seconds,
            p95_seconds=float(np.quantile(self.completed, 0.95)),
            alone_seconds=statistics.median(self.alone),
            resident_bytes=sum(group.resident_bytes for group in self.model.groups()),
        )


ROUNDS = 3
"""Number of slices of each configuration's time; configurations take turns after each slice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The search of `paddlepool tune`, with `seconds` of load for each configuration.

    `p95_seconds` is the latency limit.
    """

    files: ModelFiles
    p95_seconds: float
    cores: int
    seconds: float
    open_predictor: PredictorFactory
    comparison_of: Callable[[ServedModelInfo], TaskComparison | None]

    async def run(self) -> tuple[Outcome | None, list[Outcome]]:
        """Return the chosen outcome (None if all are above the latency limit) and all outcomes.

        Configurations for which memory is short have no outcome; standard error names them.
        """
        buckets = tuple(int(size) for size in self.files.config.parameters.get("buckets", ()))
        sizes = BATCHES if self._rows_are_a_batch() else ()
        batch = min(1, self.files.config.dynamic_batching.max_batch_size)
        splits = thread_configurations(self.cores, buckets=buckets, batch=batch)
        most = len(splits) + len(sizes) + (3 if buckets else 0)
        about = f"tuning {self.files.name}"
        if not sys.stderr.isatty():  # a bar would not be shown there
            minutes = most * self.seconds / 60
            print(
                f"{about}: up to {most} configurations, {minutes:.0f} minutes of load",
                file=sys.stderr,
                flush=True,
            )
        with tqdm(total=ROUNDS * most, desc=about, unit="turn", disable=None) as bar:
            outcomes = await self._stage(splits, [], bar)
            best = choose(outcomes, p95_seconds=self.p95_seconds)
            if best is not None:
                batches = [replace(best.configuration, batch=batch) for batch in sizes]
                outcomes += await self._stage(batches, outcomes, bar)
                best = choose(outcomes, p95_seconds=self.p95_seconds) or best
                others = bucket_configurations(best.configuration)
                outcomes += await self._stage(others, outcomes, bar)
        return choose(outcomes, p95_seconds=self.p95_seconds), outcomes

    def _rows_are_a_batch(self) -> bool:
        """Return whether requests may share a run; sealing or the user may have said no."""
        manifest = self.files.manifest
        free = all(spec.shape[:1] == (-1,) for spec in (*manifest.inputs, *manifest.outputs))
        return free and self.files.config.dynamic_batching.max_batch_size > 0

    async def _stage(
        self, configurations: Sequence[Configuration], known: Sequence[Outcome], bar: "tqdm[Any]"
    ) -> list[Outcome]:
        loaded: list[LoadedConfiguration] = []
        async with AsyncExitStack() as opened:
            for configuration in configurations:
                # Half of the free memory must suffice if each predictor is as large as the largest
                # one so far.
                held = max(
                    (outcome.resident_bytes // outcome.configuration.count for outcome in known),
                    default=0,
                )
                if not held and loaded:
                    first = loaded[0].model.groups()[0]
                    held = first.resident_bytes // max(1, first.live)
                if configuration.count * held > available_memory() // 2:
                    bar.write(f"left out for lack of memory: {configuration}", file=sys.stderr)
                    continue
                loaded.append(await opened.enter_async_context(self.opened(configuration)))
            for under_load in loaded:
                await under_load.run_alone()
            for _ in range(ROUNDS):
                for under_load in loaded:
                    await under_load.run(self.seconds / ROUNDS)
                    bar.update()
            return [under_load.outcome() for under_load in loaded]

    @asynccontextmanager
    async def opened(self, configuration: Configuration) -> AsyncIterator[LoadedConfiguration]:
        """Serve a configuration in the block; its predictors are warm and self-tested."""
        config = self.files.config
        group = config.group(config.default_group).model_copy(
            update={
                "count": configuration.count,
                "threads": configuration.threads,
                "start": "always",
            }
        )
        changes = {
            "instance_group": (group,),
            "dynamic_batching": DynamicBatching(
                max_batch_size=configuration.batch, max_queue_size=64
            ),
        }
        if configuration.buckets:
            changes["parameters"] = config.parameters | {"buckets": list(configuration.buckets)}
        files = replace(self.files, config=config.model_copy(update=changes))
        task = self.comparison_of(files.info())
        agreement = None if task is None else task.agreement
        # If rows are a batch, a job has one row; a batch is made of jobs.
        rows = slice(1) if self._rows_are_a_batch() else slice(None)
        jobs = [
            {name: array[rows] for name, array in inputs.items()}
            for _, inputs in choose_samples(
                task, (), files.selftest(agreement), files.manifest.inputs
            )
        ]
        shapes = {tuple((name, array.shape) for name, array in job.items()) for job in jobs}
        warmups = tuple(Warmup(shapes=dict(pairs)) for pairs in sorted(shapes))
        model = ServedModel(
            replace(files, config=files.config.model_copy(update={"warmup": warmups})),
            context=EngineContext(
                open_predictor=self.open_predictor,
                observer=Metrics(build={}),
                max_resident_bytes=1 << 40,
                agreement_of=lambda _info: agreement,
            ),
        )
        try:
            await model.start()
            clients = max(self.cores, configuration.count * max(1, configuration.batch))
            yield LoadedConfiguration(configuration, clients, cycle(jobs), model)
        finally:
            await model.close()
