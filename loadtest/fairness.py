"""What one caller's flood costs another: a quiet client's p99 beside ten times what fits.

    .venv/bin/python loadtest/fairness.py [--seconds 5] [--rounds 6] [--json FILE]

Two keys, one server. In phases by turns the quiet key asks alone, and while requests of the other
key for the same endpoint arrive at ten times the rate at which it can answer, from a process of
their own. A first flood, which has the express instances opened, is not counted. Exit code 1 when
the quiet one's p99 beside the flood is more than 1.5 times that alone, or when it is refused.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Mapping
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

from cases import Case
from harness import Server, running_server
from interleaved_runs import MODES, run, show_table, single_row_cases, summary, users
from open_loop import Ended, arrivals
from phases import drive

LIMIT = 1.5
FACTOR = 10.0
PAUSE_SECONDS = 0.1
QUIET, FLOOD = "quiet-key", "flood-key"


def keyed(case: Case, key: str) -> Case:
    """The same request with a key."""
    first, rest = case.request.split(b"\r\n", 1)
    return replace(case, request=first + b"\r\nX-Api-Key: " + key.encode() + b"\r\n" + rest)


def phase(
    server: Server, case: Case, elsewhere: Executor, *, rate: float, seconds: float, seed: int
) -> list[float]:
    """Seconds of the quiet client's requests; a `rate` of 0 leaves it alone."""
    flood: Future[list[Ended]] | None = None
    with users(server, [(keyed(case, QUIET), PAUSE_SECONDS)], seed=seed) as [answered]:
        if rate:
            request = keyed(case, FLOOD).request
            flood = elsewhere.submit(arrivals, server.port, request, rate=rate, seconds=seconds)
        time.sleep(seconds)
    if flood is not None:
        flood.result()
    return [each.seconds for each in answered]


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    found = {}
    environment = {"PADDLEPOOL_API_KEYS": f"{QUIET},{FLOOD}"}
    with (
        running_server(arguments.repository, environment=environment) as server,
        ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as elsewhere,
    ):
        for case in single_row_cases(arguments.repository):
            group = case.model.config.group(case.model.config.default_group)
            clients = 2 * group.count
            fits = drive(server, keyed(case, FLOOD), clients=clients, seconds=arguments.seconds)
            turn = partial(phase, server, case, elsewhere, seconds=arguments.seconds)
            turn(rate=FACTOR * fits, seed=0)
            taken: dict[str, list[list[float]]] = {mode: [] for mode in MODES}
            for number in range(arguments.rounds):
                for mode in MODES[:: 1 if number % 2 else -1]:
                    rate = FACTOR * fits if mode == "on" else 0.0
                    taken[mode].append(turn(rate=rate, seed=number))
            found[case.name] = summary(taken) | {"fits_per_second": fits}
    return {"latency": found}


def show(report: Mapping[str, Any]) -> bool:
    """Print the table; whether the target is met."""
    for name, each in report["latency"].items():
        print(
            f"{name}: {each['fits_per_second']:.1f} a second fit, {FACTOR:.0f} times as many came"
        )
    show_table(report["latency"])
    worst = max(each["p99"]["ratio"] for each in report["latency"].values())
    print(f"{'met   ' if worst <= LIMIT else 'MISSED'} p99 {worst:.2f} times (limit {LIMIT})")
    return bool(worst <= LIMIT)


def main() -> None:
    run(
        argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]),
        seconds=5.0,
        rounds=6,
        measure=measure,
        show=show,
    )


if __name__ == "__main__":
    main()
