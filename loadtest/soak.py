"""Run an endurance test with mixed traffic, invalid input, disconnects, kills and reloads.

    .venv/bin/python loadtest/soak.py --minutes 120

The server runs on 127.0.0.1, and every answer is compared with that of an undisturbed server. Codec
and predictor processes are killed with SIGKILL, and models are reloaded. One request in twenty is
invalid, and one client in fifty disconnects before its answer. Memory and descriptors of every
process are sampled every five seconds. Exit code 1: a wrong answer; a request lost other than in a
killed process; more than one in a hundred rejected with Retry-After; a reload that failed without a
kill; more than 15 MiB of growth of the API process after the first ten minutes; a process that
lives for ten minutes and grows by more than a tenth in the second half of its life.
"""

import argparse
import contextlib
import os
import random
import secrets
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from signal import SIGKILL

from cases import load_request
from harness import ROOT, Server, descendants, repeated, resident_bytes, running_server, status_of
from soak_traffic import Lost, Tally, Traffic, bad_requests, good_requests

WARM_UP_SECONDS = 600.0
GROWTH_BYTES = 15 << 20
OTHERS_GROWTH = 1.1
"""Maximum growth of a child in the second half of its life. Earlier, a predictor still grows with
each new shape and size."""
DYING_SECONDS = 0.1
"""A killed process ends with a delay, and the kill is recorded after it."""
REFUSED_SHARE = 0.01
MIB = 1 << 20
API, CODEC, PREDICTOR = "API", "codec", "predictor"
SAMPLE_SECONDS = 5.0
MODELS = ("emotion", "mnist", "u2netp")


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample of one process: time.monotonic, resident bytes, open descriptors."""

    at: float
    role: str
    pid: int
    resident: int
    descriptors: int


@dataclass(frozen=True, slots=True)
class Kill:
    at: float
    role: str


@dataclass(frozen=True, slots=True)
class Reload:
    """A request to load a model again; `status` is 0 without a reply."""

    began: float
    ended: float
    status: int


@dataclass(slots=True)
class Watched:
    """All samples, kills and reloads."""

    samples: list[Sample] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)
    reloads: list[Reload] = field(default_factory=list)


@contextlib.contextmanager
def watching(server: Server, args: argparse.Namespace, *, admin_key: str) -> Iterator[Watched]:
    """Sample, kill and reload while the block runs."""
    watched = Watched()
    draw = random.Random(1)

    def kill() -> None:
        """Kill a codec or predictor process of this server, if there is one."""
        children = [child for child in samples(server) if child.role != API]
        with contextlib.suppress(IndexError, ProcessLookupError):
            # Each role is equally likely, however many processes it has.
            role = draw.choice(sorted({child.role for child in children}))
            os.kill(draw.choice([child.pid for child in children if child.role == role]), SIGKILL)
            watched.kills.append(Kill(time.monotonic(), role))

    def reload() -> None:
        request = load_request(MODELS[len(watched.reloads) % len(MODELS)], key=admin_key)
        began, status = time.monotonic(), status_of(server.port, request, timeout=600)
        watched.reloads.append(Reload(began, time.monotonic(), status))

    with (
        repeated(kill, every=lambda: draw.uniform(0.5, 1.5) * args.kill_every),
        repeated(reload, every=lambda: args.reload_every),
        repeated(lambda: watched.samples.extend(samples(server)), every=lambda: SAMPLE_SECONDS),
    ):
        yield watched


def samples(server: Server) -> list[Sample]:
    """Sample each live process."""
    rows = []
    now = time.monotonic()
    for pid in (server.pid, *descendants(server.pid)):
        with contextlib.suppress(OSError):  # it has ended
            if (role := API if pid == server.pid else role_of(pid)) is not None:
                descriptors = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
                rows.append(Sample(now, role, pid, resident_bytes(pid), descriptors))
    return rows


def role_of(pid: int) -> str | None:
    """The role, by command line and the arguments of predictors. Raises OSError after its end."""
    directory = Path(f"/proc/{pid}")
    if b"paddlepool.engine.process.worker" not in (directory / "cmdline").read_bytes().split(b"\0"):
        return None
    predictor = b"GLOG_minloglevel=" in (directory / "environ").read_bytes()
    return PREDICTOR if predictor else CODEC


def longest_lived(all_samples: Sequence[Sample], role: str) -> list[list[Sample]]:
    """The samples of each process of a role, longest-lived first."""
    lives: dict[int, list[Sample]] = {}
    for sample in all_samples:
        if sample.role == role:
            lives.setdefault(sample.pid, []).append(sample)
    return sorted(lives.values(), key=lambda life: life[0].at - life[-1].at)


def cause(lost: Lost, watched: Watched) -> str:
    """Return the kill that caused a lost request, or nothing.

    A killed predictor fails its batch (500). A codec call is retried once: two kills, or the start
    of a new process, fail the request (503, 504); so does waiting for a predictor.
    """
    first, last = lost.began - DYING_SECONDS, lost.ended + DYING_SECONDS
    roles = {kill.role for kill in watched.kills if first <= kill.at <= last}
    if PREDICTOR in roles and lost.status in (500, 503, 504):
        return f"a predictor was killed meanwhile ({lost.status})"
    if CODEC in roles and lost.request.picture and lost.status in (503, 504):
        return f"a codec was killed meanwhile ({lost.status})"
    return ""


def growth(samples: Sequence[Sample], *, start: float) -> int | None:
    """Growth in bytes from the first to the highest minute after `start`, as medians of minutes.

    None if there are fewer than two minutes.
    """
    later = (sample for sample in samples if sample.at >= start)
    minutes = groupby(later, lambda sample: (sample.at - start) // 60)
    medians = [statistics.median(sample.resident for sample in minute) for _, minute in minutes]
    return round(max(medians[1:]) - medians[0]) if len(medians) > 1 else None


def verdict(tally: Tally, watched: Watched, *, began: float) -> Iterator[tuple[bool, str]]:
    """Lines of the report, and whether each criterion is met."""
    yield not tally.wrong, f"{len(tally.wrong)} wrong answers"
    for wrong in tally.wrong[:10]:
        yield False, wrong
    share = len(tally.refused) / max(1, sum(tally.sent.values()))
    yield share <= REFUSED_SHARE, f"{len(tally.refused)} refused to be asked again ({share:.1%})"
    causes = Counter(cause(lost, watched) for lost in tally.lost)
    unexplained = causes.pop("", 0)
    explained = "".join(f"; {count}: {why}" for why, count in causes.items())
    yield True, f"{len(tally.lost)} requests lost{explained}"
    yield not unexplained, f"{unexplained} requests lost without a cause"
    for lost in [lost for lost in tally.lost if not cause(lost, watched)][:10]:
        took = f"{lost.ended - lost.began:.1f} s, from {lost.began - began:.1f} s on"
        yield False, f"{lost.request.name}: {lost.status} {lost.reason} after {took}"
    roles = Counter(kill.role for kill in watched.kills)
    yield bool(roles), f"killed: {roles[PREDICTOR]} predictors, {roles[CODEC]} codecs"
    failed = [load for load in watched.reloads if load.status != 200]
    alone = sum(
        all(not load.began <= kill.at <= load.ended for kill in watched.kills) for load in failed
    )
    reloads = f"{len(watched.reloads)} reloads, {len(failed)} failed, {alone} without a cause"
    yield not alone, reloads
    yield from _memory(watched.samples, began + WARM_UP_SECONDS)


def _memory(samples: Sequence[Sample], start: float) -> Iterator[tuple[bool, str]]:
    api = [sample for sample in samples if sample.role == API]
    grown = growth(api, start=start)
    if grown is None:
        yield True, "API memory: not judged in less than twelve minutes"
    else:
        yield (
            grown <= GROWTH_BYTES,
            f"API memory: {grown / MIB:+.1f} MiB after the first ten minutes (limit +15)",
        )
    if api:
        yield True, f"API: {_span(api)}"
    for role in (CODEC, PREDICTOR):
        lives = longest_lived(samples, role)
        old = [life for life in lives if life[-1].at - life[0].at >= WARM_UP_SECONDS]
        for life in old[:3]:
            flat = life[-1].resident <= OTHERS_GROWTH * life[len(life) // 2].resident
            yield flat, f"{role} {life[0].pid}, {_span(life)}"
        yield True, f"{len(lives)} {role} processes, {len(old)} of them for ten minutes"


def _span(life: Sequence[Sample]) -> str:
    memory = [round(sample.resident / MIB) for sample in (life[0], life[len(life) // 2], life[-1])]
    descriptors = [sample.descriptors for sample in life]
    return (
        f"{(life[-1].at - life[0].at) / 60:.1f} min: {' → '.join(map(str, memory))} MiB, "
        f"{min(descriptors)} to {max(descriptors)} descriptors, {descriptors[-1]} at the end"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--kill-every", type=float, default=30.0, help="seconds, on average")
    parser.add_argument("--reload-every", type=float, default=60.0, help="seconds")
    args = parser.parse_args()
    admin_key = secrets.token_hex(16)
    environment = {
        "PADDLEPOOL_ADMIN_KEY": admin_key,
        # The clients also load the machine; latency is not judged here.
        "PADDLEPOOL_TIMEOUT_DEFAULT_MS": "30000",
    }
    with running_server(ROOT / "model_repo", environment=environment) as server:
        traffic = Traffic(server.port, good_requests(), bad_requests())
        began = time.monotonic()
        with (
            watching(server, args, admin_key=admin_key) as watched,
            traffic.users(4, pause=0.5),
        ):
            time.sleep(60 * args.minutes)
    tally = traffic.tally
    kinds = ", ".join(f"{count} {kind}" for kind, count in tally.sent.items())
    print(f"{args.minutes:g} minutes, {sum(tally.sent.values())} requests: {kinds}")
    met = True
    for passed, line in verdict(tally, watched, began=began):
        met &= passed
        print(f"{'' if passed else 'MISSED '}{line}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
