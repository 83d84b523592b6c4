"""What reloads cost the users: their latencies while a model is loaded anew and while none is.

    .venv/bin/python loadtest/reload.py [--model emotion] [--every S] [--cores N] [--json FILE]

Users who pause between requests turn to one server. In every other phase the model is loaded anew
every so many seconds, or with `--every 0` without a break, and every request of that phase counts;
the phase beside it has the same length, whichever of them is first. Exit code 1 when a request
fails, or when the p99 of the phases with reloads is more than 10 % above that of the others.
Requests that were under way during a reload are shown apart.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import math
import os
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from cases import Case
from harness import HOST, Connection, Server, running_server
from interleaved_runs import MODES, run, show_table, single_row_cases, summary, users
from phases import checked
from tqdm import tqdm

LIMIT = 1.10
KEY = "reload"
SETTLE_SECONDS = 1.0
CALIBRATION_REQUESTS = 20


@dataclass(frozen=True, slots=True)
class Phase:
    """Seconds of each request that was under way in it, of each that met a reload, and of each
    reload. The last one may end after the phase."""

    taken: list[float]
    met: list[float]
    reloads: list[float]


def reload(server: Server, model: str) -> tuple[float, float]:
    """Load the model anew; when that began and ended."""
    began = time.perf_counter()
    with contextlib.closing(http.client.HTTPConnection(HOST, server.port, timeout=600)) as client:
        client.request("POST", f"/v2/repository/models/{model}/load", headers={"X-Api-Key": KEY})
        answer = client.getresponse()
        if answer.status != 200:
            raise RuntimeError(f"load of {model}: status {answer.status}: {answer.read()[:300]!r}")
    return began, time.perf_counter()


def mean_pause(server: Server, case: Case, *, number: int, load: float) -> float:
    """Seconds for which so many users must pause to ask for that share of what the server can do.

    It can run as many requests at a time as the model has predictors and the machine cores.
    """
    with contextlib.closing(Connection(server.port)) as connection:
        taken = [checked(connection, case).seconds for _ in range(CALIBRATION_REQUESTS)]
    alone = statistics.median(taken)
    cores = len(os.sched_getaffinity(0))
    at_once = min(cores, case.model.config.group(case.model.config.default_group).count)
    return max(0.001, number * alone / (load * at_once) - alone)


def phase(
    server: Server,
    case: Case,
    *,
    every: float | None,
    seconds: float,
    number: int,
    pause: float,
    seed: int,
) -> Phase:
    """With `every`, a reload each so many seconds, or as soon as the last has ended."""
    reloads = []
    with users(server, [(case, pause)] * number, seed=seed) as answered:
        time.sleep(SETTLE_SECONDS)
        began = time.perf_counter()
        ended = began + seconds
        while every is not None and time.perf_counter() < ended:
            reloads.append(reload(server, case.model.name))
            sleep_until(min(ended, reloads[-1][0] + every))
        sleep_until(ended)
    requests = [each for user in answered for each in user]
    return Phase(
        [each.seconds for each in requests if each.overlaps(began, ended)],
        [each.seconds for each in requests if any(each.overlaps(*span) for span in reloads)],
        [end - start for start, end in reloads],
    )


def sleep_until(moment: float) -> None:
    """No time at all where it has passed."""
    time.sleep(max(0.0, moment - time.perf_counter()))


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    cases = {case.model.name: case for case in single_row_cases(arguments.repository)}
    case = cases[arguments.model]
    seconds = arguments.seconds
    if arguments.every:  # whole periods: the last reload has as much time behind it as the others
        seconds = arguments.every * math.ceil(seconds / arguments.every)
    environment = {"PADDLEPOOL_ADMIN_KEY": KEY, "PADDLEPOOL_PROVE_GROUPS": "off"}
    found: dict[str, list[list[float]]] = {mode: [] for mode in MODES}
    reloads: list[float] = []
    met: list[float] = []
    with running_server(arguments.repository, environment=environment) as server:
        pause = mean_pause(server, case, number=arguments.users, load=arguments.load)
        for number in tqdm(range(arguments.rounds), unit="round", disable=None):
            for mode in MODES if number % 2 else reversed(MODES):
                done = phase(
                    server,
                    case,
                    every=arguments.every if mode == "on" else None,
                    seconds=seconds,
                    number=arguments.users,
                    pause=pause,
                    seed=number,
                )
                found[mode].append(done.taken)
                reloads += done.reloads
                met += done.met
    return {
        "model": arguments.model,
        "users": arguments.users,
        "pause_seconds": pause,
        "reload_seconds": sorted(reloads),
        "met_a_reload": {
            "requests": len(met),
            **{f"p{q}_seconds": float(np.quantile(met, q / 100)) for q in (50, 95, 99)},
        },
        "latency": {case.name: summary(found)},
    }


def show(report: Mapping[str, Any]) -> bool:
    """Print the table; whether the target is met."""
    seconds = report["reload_seconds"]
    print(
        f"{report['model']} on {report['cores']} cores, {report['users']} users who pause for "
        f"{report['pause_seconds']:.2f} s: {len(seconds)} reloads of {seconds[0]:.1f} to "
        f"{seconds[-1]:.1f} s"
    )
    show_table(report["latency"])
    met = report["met_a_reload"]
    print(
        f"{met['requests']} requests met a reload:"
        + ",".join(f" p{q} {1000 * met[f'p{q}_seconds']:.1f} ms" for q in (50, 95, 99))
    )
    [latency] = report["latency"].values()
    print(f"none of {sum(latency['requests'].values())} requests lost")
    within = bool(latency["p99"]["ratio"] <= LIMIT)
    print(f"{'met   ' if within else 'MISSED'} p99 with reloads within 10 %")
    return within


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="emotion", help="a model with a task")
    parser.add_argument("--users", type=int, default=3)
    parser.add_argument(
        "--load", type=float, default=0.5, help="share of what the predictors can do, asked for"
    )
    parser.add_argument(
        "--every", type=float, default=20.0, help="seconds from reload to reload; 0: no break"
    )
    run(parser, seconds=20.0, rounds=8, measure=measure, show=show)


if __name__ == "__main__":
    main()
