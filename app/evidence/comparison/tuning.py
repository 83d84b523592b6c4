"""Finds the default group's best shape within a latency limit, and writes it to config.toml."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from app.contracts.errors import ConfigError
from app.evidence.verdict.proof import fastest_of
from app.models.repository.config import AUTO, load_config

EQUAL = 1.10
"""Candidates within this of the best count as equally fast; the simplest of them wins."""

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
    """A candidate's figures under load, from the server's own histogram."""

    candidate: Candidate
    clients: int
    per_second: float
    p95_seconds: float
    resident_bytes: int


def thread_candidates(cores: int, *, buckets: tuple[int, ...]) -> list[Candidate]:
    """Splits of the cores into equal predictors, by powers of two; some leave cores idle."""
    powers = [2**power for power in range(cores.bit_length()) if 2**power <= cores]
    sizes = sorted({*powers, cores})
    return [
        Candidate(batch=1, threads=threads, count=count, buckets=buckets)
        for threads in sizes
        for count in sizes
        if threads * count <= cores
    ]


def batch_candidates(best: Candidate) -> list[Candidate]:
    return [Candidate(batch, best.threads, best.count, best.buckets) for batch in BATCHES]


def bucket_candidates(best: Candidate) -> list[Candidate]:
    """Other sets of length buckets with the same maximum: one, half and twice as many."""
    if not best.buckets:
        return []
    lengths = best.buckets
    between = [(low + high) // 2 for low, high in pairwise(lengths)]
    every_other = lengths[::-1][::2][::-1]
    found = {lengths[-1:], every_other, tuple(sorted({*lengths, *between}))} - {lengths}
    return [Candidate(best.batch, best.threads, best.count, each) for each in sorted(found)]


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
    own = chosen.candidate
    lines = [f"{own}: {chosen.per_second:.2f} requests per second, p95 {chosen.p95_seconds:.3f} s"]
    for kind, because, rivals in _rivals(own, outcomes):
        if not rivals:
            continue
        rival = max(rivals, key=lambda each: each.per_second)
        gain = rival.per_second / chosen.per_second - 1
        if rival.p95_seconds > p95_seconds and gain > 0:
            because = "but its p95 is beyond what was asked for"
        elif gain > 0:
            because = "which counts as equal, and it is not as simple"
        lines.append(
            f"{kind} ({rival.candidate}): {gain:+.0%} requests per second, "
            f"p95 {rival.p95_seconds:.3f} s; {because}"
        )
    return lines


def _rivals(
    own: Candidate, outcomes: Sequence[Outcome]
) -> Iterator[tuple[str, str, list[Outcome]]]:
    """Each kind of alternative, the reason why it serves less, and its outcomes."""
    others = [(each.candidate, each) for each in outcomes if each.candidate != own]
    plain = [(c, each) for c, each in others if c.batch == own.batch]
    yield (
        "more threads in a predictor",
        "threads of one predictor wait for each other, predictors do not",
        [each for c, each in plain if c.threads > own.threads],
    )
    yield (
        "fewer predictors",
        "cores are left idle",
        [each for c, each in plain if c.count < own.count and c.threads == own.threads],
    )
    yield (
        "more predictors",
        "they wait for each other",
        [each for c, each in plain if c.count > own.count],
    )
    yield (
        "batching",
        "a batch costs as much as its rows one by one",
        [each for c, each in others if c.batch > own.batch],
    )
    yield (
        "smaller batches",
        "a batch costs less than its rows one by one",
        [each for c, each in others if c.batch < own.batch and c.threads == own.threads],
    )
    yield (
        "other buckets",
        "more padding, or more shapes than pay",
        [each for c, each in plain if c.buckets != own.buckets and c.count == own.count],
    )


if TYPE_CHECKING:
    import tomlkit


def write_group(path: Path, candidate: Candidate, *, lengths: dict[str, tuple[int, ...]]) -> None:
    """Set the default group's count and threads, the batch size and, for texts, the buckets.

    `lengths` maps each input of the warm-up shapes to its leading sizes, without the bucket. Raises
    ConfigError.
    """
    config, document = load_config(path), _parsed(path)
    import tomlkit

    for group in document.get("instance_group", []):
        if group["name"] == config.default_group:
            group["count"], group["threads"] = candidate.count, candidate.threads
            break
    else:
        raise ConfigError(f"{path.parent.name}/config.toml lists no group {config.default_group!r}")
    document.setdefault("dynamic_batching", tomlkit.table())["max_batch_size"] = candidate.batch
    if candidate.buckets and candidate.buckets != tuple(config.parameters.get("buckets", ())):
        document["parameters"]["buckets"] = list(candidate.buckets)
        warmups = tomlkit.aot()
        for bucket in candidate.buckets:
            shapes = tomlkit.inline_table()
            shapes.update({name: [*leading, bucket] for name, leading in lengths.items()})
            table = tomlkit.table()
            table["shapes"] = shapes
            warmups.append(table)
        document["warmup"] = warmups
    _write(path, document)


def write_default_group(path: Path, name: str) -> None:
    """Make `name` the default group; it starts with the server, the old one on demand.

    It gets as many instances as fit into the old group's threads. Raises ConfigError.
    """
    config, document = load_config(path), _parsed(path)
    old = config.default_group
    tables = {str(group["name"]): group for group in document.get("instance_group", [])}
    if name not in tables:
        raise ConfigError(f"{path.parent.name}/config.toml lists no group {name!r}")
    if document.get("default_group") == AUTO:  # replace its comment, which explains "auto"
        document["default_group"].comment("by paddlepool tune; was auto")
    document["default_group"] = name
    chosen = tables[name]
    chosen.pop("start", None)
    if old in tables and old != name:
        budget = config.group(old).count * config.group(old).threads
        chosen["count"] = max(1, budget // config.group(name).threads)
        tables[old]["start"] = "on_demand"
    _write(path, document)


def _parsed(path: Path) -> tomlkit.TOMLDocument:
    try:
        import tomlkit
    except ImportError as error:
        raise ConfigError(
            "writing config.toml needs the package tomlkit (extra compare)"
        ) from error
    try:
        return tomlkit.parse(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"{path.parent.name} has no config.toml to write to") from error


def _write(path: Path, document: tomlkit.TOMLDocument) -> None:
    import tomlkit

    staged = path.with_name(".config.toml.new")
    staged.write_text(tomlkit.dumps(document), "utf-8")
    load_config(staged)
    staged.replace(path)
