"""Endurance: mixed traffic with bad input, disconnects, kills and reloads, against a server of its
own on 127.0.0.1, every answer compared with the calm one.

    .venv/bin/python loadtest/soak.py --minutes 120

Codec and predictor processes are killed with SIGKILL, models are loaded anew, one request in twenty
is broken and one in fifty leaves before its answer. Memory and descriptors of every process are
sampled every five seconds. Exit code 1: a wrong answer; a request lost that was in no
killed process; more than one in a hundred refused with Retry-After; a reload that failed without a
kill; more than 15 MiB of growth of the API process after the first ten minutes; a process that
lives for ten minutes and grows by more than a fifth.
"""

from __future__ import annotations

import argparse
import secrets
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence

from harness import ROOT, running_server
from soak_traffic import Lost, Tally, Traffic
from soak_watch import (
    API,
    CODEC,
    PREDICTOR,
    Reload,
    Sample,
    Watched,
    longest_lived,
    watching,
)

SETTLED_SECONDS = 600.0
GROWTH_BYTES = 15 << 20
OTHERS_GROWTH = 1.2
RECOVERY_SECONDS = 60.0
"""After the machine stood still: what looks dead is replaced, and deadlines have passed."""
DYING_SECONDS = 0.1
"""A killed process takes a moment to be gone, and the kill is noted after it."""
REFUSED_SHARE = 0.01
MIB = 1 << 20


def cause(lost: Lost, watched: Watched) -> str:
    """Why a request was lost, or nothing: a process it was in was killed, or all stood still.

    A predictor that is killed costs its batch (500). A codec call is run once more: two kills, or
    the time that a new process takes, cost the request (503, 504); so does waiting for a predictor.
    """
    for began, ended in watched.stalls:
        if began < lost.ended and lost.began < ended + RECOVERY_SECONDS:
            return "the machine stood still"
    first, last = lost.began - DYING_SECONDS, lost.ended + DYING_SECONDS
    roles = {kill.role for kill in watched.kills if first <= kill.at <= last}
    if PREDICTOR in roles and lost.status in (500, 503, 504):
        return f"a predictor was killed meanwhile ({lost.status})"
    if CODEC in roles and lost.asked.picture and lost.status in (503, 504):
        return f"a codec was killed meanwhile ({lost.status})"
    return ""


def growth(samples: Sequence[Sample], *, settled: float) -> int | None:
    """Bytes by which the highest minute is above the first, from `settled` on; medians of
    minutes. None where there are fewer than two."""
    minutes: dict[int, list[int]] = {}
    for sample in samples:
        if sample.at >= settled:
            minutes.setdefault(int((sample.at - settled) // 60), []).append(sample.resident)
    medians = [statistics.median(each) for each in minutes.values()]
    return round(max(medians[1:]) - medians[0]) if len(medians) > 1 else None


def verdict(tally: Tally, watched: Watched, *, began: float) -> Iterator[tuple[bool, str]]:
    """Lines, and whether each is as it must be."""
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
    for lost in [each for each in tally.lost if not cause(each, watched)][:10]:
        took = f"{lost.ended - lost.began:.1f} s, from {lost.began - began:.1f} s on"
        yield False, f"{lost.asked.name}: {lost.status} {lost.reason} after {took}"
    roles = Counter(kill.role for kill in watched.kills)
    yield bool(roles), f"killed: {roles[PREDICTOR]} predictors, {roles[CODEC]} codecs"
    failed = [each for each in watched.reloads if each.status != 200]
    alone = [each for each in failed if not _met(each, watched)]
    yield (
        not alone,
        f"{len(watched.reloads)} reloads, {len(failed)} failed, {len(alone)} without a cause",
    )
    yield from _memory(watched.samples, began + SETTLED_SECONDS)


def _met(reload: Reload, watched: Watched) -> bool:
    """A kill, or the machine standing still, which looks like a death."""
    killed = any(reload.began <= kill.at <= reload.ended for kill in watched.kills)
    return killed or any(
        began < reload.ended and reload.began < ended for began, ended in watched.stalls
    )


def _memory(samples: Sequence[Sample], settled: float) -> Iterator[tuple[bool, str]]:
    api = [each for each in samples if each.role == API]
    grown = growth(api, settled=settled)
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
        old = [each for each in lives if each[-1].at - each[0].at >= SETTLED_SECONDS]
        for each in old[:3]:
            settled_at = each[0].at + SETTLED_SECONDS / 2  # every shape and size has been there
            begin = next(sample.resident for sample in each if sample.at >= settled_at)
            flat = each[-1].resident <= OTHERS_GROWTH * begin
            yield flat, f"{role} {each[0].pid}, {_span(each)}"
        yield True, f"{len(lives)} {role} processes, {len(old)} of them for ten minutes"


def _span(life: Sequence[Sample]) -> str:
    memory = [round(each.resident / MIB) for each in (life[0], life[len(life) // 2], life[-1])]
    descriptors = [each.descriptors for each in life]
    return (
        f"{(life[-1].at - life[0].at) / 60:.1f} min: {' → '.join(map(str, memory))} MiB, "
        f"{min(descriptors)} to {max(descriptors)} descriptors, {descriptors[-1]} at the end"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--users", type=int, default=4)
    parser.add_argument("--pause", type=float, default=0.5, help="seconds, on average")
    parser.add_argument("--kill-every", type=float, default=30.0, help="seconds, on average")
    parser.add_argument("--reload-every", type=float, default=60.0, help="seconds")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    admin_key = secrets.token_hex(16)
    environment = {
        "PADDLEPOOL_ADMIN_KEY": admin_key,
        # A machine that is busy with the clients as well answers late; that is not judged here.
        "PADDLEPOOL_TIMEOUT_DEFAULT_MS": "30000",
    }
    with running_server(ROOT / "model_repo", environment=environment) as server:
        traffic = Traffic(server.port, seed=given.seed)
        began = time.monotonic()
        with (
            watching(
                server,
                admin_key=admin_key,
                kill_every=given.kill_every,
                reload_every=given.reload_every,
                seed=given.seed,
            ) as watched,
            traffic.users(given.users, pause=given.pause),
        ):
            time.sleep(60 * given.minutes)
    tally = traffic.tally
    kinds = ", ".join(f"{count} {kind}" for kind, count in tally.sent.items())
    print(f"{given.minutes:g} minutes, {sum(tally.sent.values())} requests: {kinds}")
    if watched.stalls:
        stood = sum(ended - started for started, ended in watched.stalls)
        print(f"the machine stood still {len(watched.stalls)} times, {stood:.0f} s in all")
    met = True
    for kept, line in verdict(tally, watched, began=began):
        met &= kept
        print(f"{'' if kept else 'MISSED '}{line}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
