"""What shadowing costs the users: their latencies with it and without, in turns of one run.

    .venv/bin/python loadtest/shadow.py [--groups native,onnxruntime] [--cores N] [--json FILE]

Two servers over the same models, one of which replays every request on the other groups in its
idle moments. In each phase the same users (one for pictures, one for texts, who pause between
requests so that there are idle moments) turn to one of them; the next phase begins when the replays
have come to rest. Exit code 1 when a p99 with shadowing is more than 5 % above that without, or
when nothing was replayed, which would show nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from cases import Case, read_cases
from harness import ROOT, Connection, Server, request, running_server
from phases import checked
from tqdm import tqdm

from app.engine.repository import ModelRepository

LIMIT = 1.05
REST_SECONDS = 1.0
MOST_REST_SECONDS = 30.0
PAUSE = {"segment": 0.4, "sentiment": 0.08}
"""Mean seconds between a user's requests, drawn from an exponential distribution."""
MODES = ("off", "on")

Latencies = dict[str, dict[str, list[list[float]]]]
"""Seconds by case, mode and phase."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """A quantile with shadowing over the same without; 90 % of phase-wise resamples within."""

    value: float
    low: float
    high: float


def user(server: Server, case: Case, *, seconds: float, seed: int, taken: list[float]) -> None:
    pause = PAUSE["segment" if "segment" in case.name else "sentiment"]
    draw = random.Random(seed)
    end = time.perf_counter() + seconds
    with contextlib.closing(Connection(server.port)) as connection:
        while time.perf_counter() < end:
            taken.append(checked(connection, case).seconds)
            time.sleep(draw.expovariate(1 / pause))


def phase(server: Server, cases: Sequence[Case], *, seconds: float, seed: int) -> list[list[float]]:
    """The latencies of each case's user; both work at the same time."""
    taken: list[list[float]] = [[] for _ in cases]
    users = [
        threading.Thread(
            target=user,
            args=(server, case),
            kwargs={"seconds": seconds, "seed": seed, "taken": each},
        )
        for case, each in zip(cases, taken, strict=True)
    ]
    for thread in users:
        thread.start()
    for thread in users:
        thread.join()
    return taken


def counted(server: Server, pattern: str) -> dict[str, float]:
    """Samples of /metrics by the pattern's first group."""
    with contextlib.closing(Connection(server.port)) as connection:
        text = connection.send(request("GET", "/metrics")).body.decode()
    return {match[1]: float(match[2]) for match in re.finditer(pattern, text, re.MULTILINE)}


def replays(server: Server) -> dict[str, float]:
    """Replays so far, by labels of model and predictor."""
    return counted(server, r"^paddlepool_predictor_output_drift_count\{(.*)\} (\S+)$")


def come_to_rest(server: Server) -> None:
    """Wait until no replay has ended for a while: none may run on in the other server's phase."""
    give_up = time.monotonic() + MOST_REST_SECONDS
    before, since = replays(server), time.monotonic()
    while time.monotonic() < min(give_up, since + REST_SECONDS):
        time.sleep(0.2)
        if (now := replays(server)) != before:
            before, since = now, time.monotonic()


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    cases = [
        case
        for case in read_cases(ModelRepository(arguments.repository), requests=1)
        if case.rows == 1
    ]
    common = {"PADDLEPOOL_PROVE_GROUPS": "off"}
    shadowing = {
        "PADDLEPOOL_SHADOW_FRACTION": str(arguments.fraction),
        "PADDLEPOOL_SHADOW_GROUPS": arguments.groups,
        "PADDLEPOOL_SHADOW_MAX_PREDICTORS": "16",
    }
    with (
        running_server(arguments.repository, environment=common) as plain,
        running_server(arguments.repository, environment=common | shadowing) as shadowed,
    ):
        servers = {"off": plain, "on": shadowed}
        for server in servers.values():  # opens the shadow predictors, and warms everything up
            phase(server, cases, seconds=2.0, seed=0)
        come_to_rest(shadowed)
        before = replays(shadowed)
        found: Latencies = {case.name: {mode: [] for mode in MODES} for case in cases}
        for number in tqdm(range(arguments.rounds), unit="round", disable=None):
            for mode in MODES if number % 2 == 0 else reversed(MODES):
                taken = phase(servers[mode], cases, seconds=arguments.seconds, seed=number)
                for case, each in zip(cases, taken, strict=True):
                    found[case.name][mode].append(each)
                come_to_rest(shadowed)
        after = replays(shadowed)
        memory = {mode: server.memory()["pss"] for mode, server in servers.items()}
    return {
        "cores": len(os.sched_getaffinity(0)),
        "fraction": arguments.fraction,
        "replays": {name: after[name] - before.get(name, 0) for name in after if after[name]},
        "memory_bytes": memory,
        "latency": {name: summary(phases) for name, phases in found.items()},
    }


def summary(phases: Mapping[str, Sequence[Sequence[float]]]) -> dict[str, Any]:
    result: dict[str, Any] = {
        "requests": {mode: sum(map(len, each)) for mode, each in phases.items()}
    }
    for quantile in (0.5, 0.95, 0.99):
        seconds = {mode: pooled(each, quantile) for mode, each in phases.items()}
        ratio = ratio_of(phases, quantile)
        result[f"p{round(100 * quantile)}"] = {
            **{f"{mode}_seconds": value for mode, value in seconds.items()},
            "ratio": ratio.value,
            "ratio_low": ratio.low,
            "ratio_high": ratio.high,
        }
    return result


def ratio_of(phases: Mapping[str, Sequence[Sequence[float]]], quantile: float) -> Ratio:
    """Rounds are drawn again, both modes of one together: what else the machine did hits both."""
    draw = np.random.default_rng(20)
    rounds = len(phases["on"])
    ratios = []
    for _ in range(400):
        picks = draw.integers(0, rounds, rounds)
        on, off = ([phases[mode][pick] for pick in picks] for mode in ("on", "off"))
        ratios.append(pooled(on, quantile) / pooled(off, quantile))
    low, high = np.quantile(ratios, (0.05, 0.95))
    value = pooled(phases["on"], quantile) / pooled(phases["off"], quantile)
    return Ratio(value, float(low), float(high))


def pooled(phases: Sequence[Sequence[float]], quantile: float) -> float:
    return float(np.quantile(np.concatenate([np.asarray(each) for each in phases]), quantile))


def show(report: Mapping[str, Any]) -> bool:
    """Print the table; whether the target is met."""
    print(f"{report['cores']} cores, {report['fraction']:.0%} of the requests replayed in between:")
    for labels, count in report["replays"].items():
        print(f"    {count:6.0f} replays {labels}")
    met = any(report["replays"].values())
    if not met:
        print("MISSED nothing was replayed: this run shows nothing")
    print(f"{'':34}{'without':>10}{'with':>10}{'ratio':>8}")
    for name, found in report["latency"].items():
        requests = " + ".join(str(count) for count in found["requests"].values())
        for quantile in ("p50", "p95", "p99"):
            row = found[quantile]
            print(
                f"{name + ' ' + quantile:34}{1000 * row['off_seconds']:8.1f}ms"
                f"{1000 * row['on_seconds']:8.1f}ms{row['ratio']:8.3f}"
                f"  ({row['ratio_low']:.3f} to {row['ratio_high']:.3f})"
                f"{'  ' + requests + ' requests' if quantile == 'p50' else ''}"
            )
        kept = found["p99"]["ratio"] <= LIMIT
        met = met and kept
        print(f"{'met   ' if kept else 'MISSED'} {name}: p99 with shadowing within 5 %")
    on, off = (report["memory_bytes"][mode] / 1e6 for mode in ("on", "off"))
    print(f"memory of all processes: {off:.0f} MB without, {on:.0f} MB with")
    return met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repository", type=Path, default=ROOT / "model_repo")
    parser.add_argument("--groups", default="native,onnxruntime", help="groups to replay on")
    parser.add_argument("--fraction", type=float, default=1.0, help="share of requests replayed")
    parser.add_argument("--seconds", type=float, default=8.0, help="length of a phase")
    parser.add_argument("--rounds", type=int, default=12, help="pairs of phases")
    parser.add_argument("--cores", type=int, help="use only so many of this machine's cores")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure here as well")
    arguments = parser.parse_args()
    if arguments.cores:
        usable = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, set(usable[: arguments.cores]))
    report = measure(arguments)
    met = show(report)
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", "utf-8")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
