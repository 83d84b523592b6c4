"""The search of `paddlepool tune`: threads and predictors first, then batches, then buckets.

Candidates get synthetic load through the server's own engine.
"""

import asyncio
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
from paddlepool.contracts.tensors import Tensors
from paddlepool.engine.pool.context import EngineContext
from paddlepool.engine.registry.model import ServedModel
from paddlepool.evidence.comparison.measure import TaskComparison, choose_samples
from paddlepool.evidence.verdict.proof import fastest_of
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

EQUAL = 1.10
"""Candidates within this factor of the best count as equally fast; the simplest of them wins."""

BATCHES = (2, 4, 8)


@dataclass(frozen=True, slots=True, order=True)
class Candidate:
    """`count` predictors of `threads` threads, batches of up to `batch`, texts in `buckets`."""

    batch: int
    threads: int
    count: int
    buckets: tuple[int, ...] = ()

    def __str__(self) -> str:
        predictors = "predictor" if self.count == 1 else "predictors"
        threads = "thread" if self.threads == 1 else "threads"
        text = f"{self.count} {predictors} × {self.threads} {threads}"
        text += ", no batching" if self.batch == 1 else f", batches up to {self.batch}"
        return text + (f", buckets {list(self.buckets)}" if self.buckets else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A candidate's figures under load."""

    candidate: Candidate
    clients: int
    per_second: float
    p95_seconds: float
    resident_bytes: int


def thread_candidates(cores: int, *, buckets: tuple[int, ...]) -> list[Candidate]:
    """Ways to divide the cores among equal predictors, by powers of two; some leave cores idle."""
    sizes = sorted({2**power for power in range(cores.bit_length())} | {cores})
    return [
        Candidate(batch=1, threads=threads, count=count, buckets=buckets)
        for threads in sizes
        for count in sizes
        if threads * count <= cores
    ]


def batch_candidates(best: Candidate) -> list[Candidate]:
    return [replace(best, batch=batch) for batch in BATCHES]


def bucket_candidates(best: Candidate) -> list[Candidate]:
    """Other sets of length buckets with the same maximum: one, half and twice as many."""
    lengths = best.buckets
    if not lengths:
        return []
    between = [(low + high) // 2 for low, high in pairwise(lengths)]
    every_other = lengths[::-1][::2][::-1]
    found = {lengths[-1:], every_other, tuple(sorted({*lengths, *between}))} - {lengths}
    return [replace(best, buckets=each) for each in sorted(found)]


def choose(outcomes: Sequence[Outcome], *, p95_seconds: float) -> Outcome | None:
    """The outcome with the most requests per second within the latency limit, or None.

    Ties go to the simplest: no batches, few threads (a crash or a slow request then holds up less),
    few buckets, little memory.
    """
    fit = [each for each in outcomes if each.p95_seconds <= p95_seconds]
    return min(
        fastest_of(fit, rate=lambda each: each.per_second, within=EQUAL),
        key=lambda each: (
            each.candidate.batch,
            each.candidate.threads,
            len(each.candidate.buckets),
            each.resident_bytes,
        ),
        default=None,
    )


def explain(chosen: Outcome, outcomes: Sequence[Outcome], *, p95_seconds: float) -> list[str]:
    """The choice, and why each candidate with more requests per second was not chosen."""
    lines = [
        f"{chosen.candidate}: {chosen.per_second:.2f} requests per second, "
        f"p95 {chosen.p95_seconds:.3f} s"
    ]
    for each in outcomes:
        gain = each.per_second / chosen.per_second - 1
        if gain > 0:
            late = each.p95_seconds > p95_seconds
            lines.append(
                f"{each.candidate}: {gain:+.0%} requests per second, p95 {each.p95_seconds:.3f} s, "
                + ("beyond what was asked for" if late else "which counts as equal; not as simple")
            )
    return lines


def write_group(path: Path, candidate: Candidate, *, inputs: Sequence[str]) -> None:
    """Set the default group's count and threads, the batch size and, for texts, the buckets.

    A warm-up shape of each of the `inputs` is one row of a bucket's length. Raises ConfigError.
    """
    config = load_config(path)
    with _edited(path) as document:
        import tomlkit

        group = _table(document, config.default_group, path)
        group["count"], group["threads"] = candidate.count, candidate.threads
        document.setdefault("dynamic_batching", tomlkit.table())["max_batch_size"] = candidate.batch
        if candidate.buckets and candidate.buckets != tuple(config.parameters.get("buckets", ())):
            document["parameters"]["buckets"] = list(candidate.buckets)
            document["warmup"] = tomlkit.aot()
            for bucket in candidate.buckets:
                shapes = tomlkit.inline_table()
                shapes.update({name: [1, bucket] for name in inputs})
                document["warmup"].append(tomlkit.table().add("shapes", shapes))


def write_default_group(path: Path, name: str) -> None:
    """Make `name` the default group, which starts with the server.

    It gets as many instances as fit into the threads of the old default group, which starts on
    demand from then on. Raises ConfigError.
    """
    config = load_config(path)
    with _edited(path) as document:
        chosen = _table(document, name, path)
        if document.get("default_group") == AUTO:  # replace its comment, which explains "auto"
            document["default_group"].comment("by paddlepool tune; was auto")
        document["default_group"] = name
        chosen.pop("start", None)
        if config.default_group != name:
            chosen["count"] = max(1, config.count_of_threads(name))
            _table(document, config.default_group, path)["start"] = "on_demand"


@contextmanager
def _edited(path: Path) -> Iterator[Any]:
    """Yield the file as a tomlkit document, which keeps comments; check and write it at the end."""
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


@dataclass(slots=True)
class CandidateUnderLoad:
    candidate: Candidate
    clients: int
    jobs: Iterator[Tensors]
    model: ServedModel
    seconds: float = 0.0
    completed: list[float] = field(default_factory=list)
    """Seconds of each request."""

    async def run(self, seconds: float) -> None:
        ends = time.perf_counter() + seconds

        async def client() -> None:
            while time.perf_counter() < ends:
                began = time.monotonic()
                await self.model.submit(next(self.jobs), deadline=began + REQUEST_SECONDS)
                self.completed.append(time.monotonic() - began)

        began = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(self.clients)))
        self.seconds += time.perf_counter() - began

    def outcome(self) -> Outcome:
        return Outcome(
            candidate=self.candidate,
            clients=self.clients,
            per_second=len(self.completed) / self.seconds,
            p95_seconds=float(np.quantile(self.completed, 0.95)),
            resident_bytes=sum(group.resident_bytes for group in self.model.groups()),
        )


ROUNDS = 3
"""Number of slices of each candidate's time; the candidates take turns after each slice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """A search with `seconds` of load for each candidate."""

    files: ModelFiles
    p95_seconds: float
    cores: int
    seconds: float
    open_predictor: PredictorFactory
    comparison_of: Callable[[ServedModelInfo], TaskComparison | None]

    async def run(self) -> tuple[Outcome | None, list[Outcome]]:
        """The choice (None if nothing is fast enough) and everything that was measured."""
        buckets = tuple(int(size) for size in self.files.config.parameters.get("buckets", ()))
        splits = thread_candidates(self.cores, buckets=buckets)
        most = len(splits) + len(BATCHES) + (3 if buckets else 0)
        about = f"tuning {self.files.name}"
        if not sys.stderr.isatty():  # a bar would not be shown there
            minutes = most * self.seconds / 60
            print(
                f"{about}: up to {most} candidates, {minutes:.0f} minutes of load",
                file=sys.stderr,
                flush=True,
            )
        with tqdm(total=ROUNDS * most, desc=about, unit="turn", disable=None) as bar:
            outcomes = await self._stage(splits, [], bar)
            for follow in (batch_candidates, bucket_candidates):
                best = choose(outcomes, p95_seconds=self.p95_seconds)
                if best is None:
                    return None, outcomes
                outcomes += await self._stage(follow(best.candidate), outcomes, bar)
        return choose(outcomes, p95_seconds=self.p95_seconds), outcomes

    async def _stage(
        self, candidates: Sequence[Candidate], known: Sequence[Outcome], bar: "tqdm[Any]"
    ) -> list[Outcome]:
        loaded: list[CandidateUnderLoad] = []
        async with AsyncExitStack() as opened:
            for candidate in candidates:
                # Judged by the largest predictor so far, half of the free memory must be enough.
                held = max((one.resident_bytes // one.candidate.count for one in known), default=0)
                if not held and loaded:
                    first = loaded[0].model.groups()[0]
                    held = first.resident_bytes // max(1, first.live)
                if candidate.count * held > available_memory() // 2:
                    bar.write(f"left out for lack of memory: {candidate}", file=sys.stderr)
                    continue
                loaded.append(await opened.enter_async_context(self.opened(candidate)))
            for _ in range(ROUNDS):
                for each in loaded:
                    await each.run(self.seconds / ROUNDS)
                    bar.update()
            return [each.outcome() for each in loaded]

    @asynccontextmanager
    async def opened(self, candidate: Candidate) -> AsyncIterator[CandidateUnderLoad]:
        """Serve a candidate in the block; its predictors are warm and have passed self-tests."""
        config = self.files.config
        group = config.group(config.default_group).model_copy(
            update={"count": candidate.count, "threads": candidate.threads, "start": "always"}
        )
        changes = {
            "instance_group": (group,),
            "dynamic_batching": DynamicBatching(max_batch_size=candidate.batch, max_queue_size=64),
        }
        if candidate.buckets:
            changes["parameters"] = config.parameters | {"buckets": list(candidate.buckets)}
        files = replace(self.files, config=config.model_copy(update=changes))
        task = self.comparison_of(files.info())
        agreement = None if task is None else task.agreement
        # A job has one row; a batch is made of jobs.
        jobs = [
            {name: array[:1] for name, array in inputs.items()}
            for _, inputs in choose_samples(
                task, (), files.selftest(agreement), files.manifest.inputs
            )
        ]
        shapes = {tuple((name, array.shape) for name, array in job.items()) for job in jobs}
        warmups = tuple(Warmup(shapes=dict(each)) for each in sorted(shapes))
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
            clients = max(self.cores, candidate.count * candidate.batch)
            yield CandidateUnderLoad(candidate, clients, cycle(jobs), model)
        finally:
            await model.close()
