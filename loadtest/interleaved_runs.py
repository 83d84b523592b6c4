"""What something costs users: latencies with it and without it, interleaved in one run."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from cases import Case, read_cases
from harness import ROOT, Connection, Server
from phases import checked

from app.repository.layout import ModelRepository

MODES = ("off", "on")
MOST_PAUSE_SECONDS = 4.0
"""Well below the time after which the server closes an idle connection."""

Phases = Mapping[str, Sequence[Sequence[float]]]
"""Seconds of each request, by mode and phase; as many phases of either mode, in rounds."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """A quantile with it over the same without; 90 % of round-wise resamples within."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Answered:
    """A request that was answered: when it began (time.perf_counter), and its seconds."""

    began: float
    seconds: float

    def overlaps(self, began: float, ended: float) -> bool:
        return self.began + self.seconds > began and self.began < ended


def single_row_cases(repository: Path) -> list[Case]:
    """A case of one picture or text for each model with a task."""
    cases = read_cases(ModelRepository(repository), requests=1)
    return [case for case in cases if case.rows == 1]


@contextlib.contextmanager
def users(
    server: Server, working: Sequence[tuple[Case, float]], *, seed: int
) -> Iterator[list[list[Answered]]]:
    """One user for each case, who pauses between requests for the seconds given, on average.

    Their lists are complete at the end; a request that fails is an error then.
    """
    stop = threading.Event()
    taken: list[list[Answered]] = [[] for _ in working]

    def work(number: int) -> None:
        case, pause = working[number]
        draw = random.Random(1000 * seed + number)
        with contextlib.closing(Connection(server.port)) as connection:
            while not stop.is_set():
                began = time.perf_counter()
                taken[number].append(Answered(began, checked(connection, case).seconds))
                stop.wait(min(draw.expovariate(1 / pause), MOST_PAUSE_SECONDS))

    with ThreadPoolExecutor(len(working)) as threads:
        ended = [threads.submit(work, number) for number in range(len(working))]
        try:
            yield taken
        finally:
            stop.set()
        for each in ended:
            each.result()


def summary(phases: Phases) -> dict[str, Any]:
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


def ratio_of(phases: Phases, quantile: float) -> Ratio:
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


def show_table(found: Mapping[str, Mapping[str, Any]]) -> None:
    """Print summaries by name."""
    print(f"{'':34}{'without':>10}{'with':>10}{'ratio':>8}")
    for name, summed in found.items():
        requests = " + ".join(str(count) for count in summed["requests"].values())
        for quantile in ("p50", "p95", "p99"):
            row = summed[quantile]
            print(
                f"{name + ' ' + quantile:34}{1000 * row['off_seconds']:8.1f}ms"
                f"{1000 * row['on_seconds']:8.1f}ms{row['ratio']:8.3f}"
                f"  ({row['ratio_low']:.3f} to {row['ratio_high']:.3f})"
                f"{'  ' + requests + ' requests' if quantile == 'p50' else ''}"
            )


def run(
    parser: argparse.ArgumentParser,
    *,
    seconds: float,
    rounds: int,
    measure: Callable[[argparse.Namespace], dict[str, Any]],
    show: Callable[[Mapping[str, Any]], bool],
) -> None:
    """Add the options that every such script has, measure, show, and exit: 0 when it was met."""
    parser.add_argument("--repository", type=Path, default=ROOT / "model_repo")
    parser.add_argument("--seconds", type=float, default=seconds, help="length of a phase")
    parser.add_argument("--rounds", type=int, default=rounds, help="pairs of phases")
    parser.add_argument("--cores", type=int, help="use only this number of the machine's cores")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure here as well")
    arguments = parser.parse_args()
    if arguments.cores:
        usable = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, set(usable[: arguments.cores]))
    report = {"cores": len(os.sched_getaffinity(0))} | measure(arguments)
    met = show(report)
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", "utf-8")
    sys.exit(0 if met else 1)
