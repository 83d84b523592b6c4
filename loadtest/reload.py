"""What a reload costs the users: their latencies in phases with one and without, in turns.

    .venv/bin/python loadtest/reload.py [--model emotion] [--cores N] [--rounds N] [--json FILE]

Users who pause between requests turn to one server; in every other phase the model is loaded anew
in the middle. Exit code 1 when a request fails, or when the p99 of the phases with a reload is more
than 10 % above that of the others.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from cases import Case, read_cases
from harness import HOST, ROOT, Connection, Server, running_server
from phases import checked
from shadow import MODES, pooled, ratio_of
from tqdm import tqdm

from app.engine.repository import ModelRepository

LIMIT = 1.10
KEY = "reload"


@contextlib.contextmanager
def reloading(
    server: Server, model: str, *, after: float, took: list[tuple[float, float]]
) -> Iterator[None]:
    """Load the model anew `after` seconds from now; `took` gets when it began and ended."""

    def run() -> None:
        time.sleep(after)
        began = time.perf_counter()
        connection = http.client.HTTPConnection(HOST, server.port, timeout=120)
        with contextlib.closing(connection):
            connection.request(
                "POST", f"/v2/repository/models/{model}/load", headers={"X-Api-Key": KEY}
            )
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
        took.append((began, time.perf_counter()))

    thread = threading.Thread(target=run)
    thread.start()
    yield
    thread.join()


def user(
    server: Server, case: Case, *, until: float, pause: float, seed: int
) -> list[tuple[float, float]]:
    """When each request began, and its seconds."""
    draw = np.random.default_rng(seed)
    taken = []
    with contextlib.closing(Connection(server.port)) as connection:
        while (began := time.perf_counter()) < until:
            taken.append((began, checked(connection, case).seconds))
            time.sleep(draw.exponential(pause))
    return taken


def phase(
    server: Server, case: Case, arguments: argparse.Namespace, seed: int
) -> list[tuple[float, float]]:
    until = time.perf_counter() + arguments.seconds
    with ThreadPoolExecutor(arguments.users) as threads:
        users = [
            threads.submit(
                user, server, case, until=until, pause=arguments.pause, seed=1000 * seed + number
            )
            for number in range(arguments.users)
        ]
        return [each for found in users for each in found.result()]


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    [case] = [
        case
        for case in read_cases(ModelRepository(arguments.repository), requests=1)
        if case.rows == 1 and case.model.name == arguments.model
    ]
    environment = {"PADDLEPOOL_ADMIN_KEY": KEY, "PADDLEPOOL_PROVE_GROUPS": "off"}
    found: dict[str, list[list[float]]] = {mode: [] for mode in MODES}
    during: list[float] = []
    took: list[tuple[float, float]] = []
    with running_server(arguments.repository, environment=environment) as server:
        phase(server, case, arguments, 0)
        for number in tqdm(range(arguments.rounds), unit="round", disable=None):
            for mode in MODES if number % 2 == 0 else reversed(MODES):
                with (
                    reloading(server, arguments.model, after=arguments.seconds / 4, took=took)
                    if mode == "on"
                    else contextlib.nullcontext()
                ):
                    taken = phase(server, case, arguments, number + 1)
                found[mode].append([seconds for _, seconds in taken])
                if mode == "on":
                    began, ended = took[-1]
                    during += [s for at, s in taken if at + s > began and at < ended]
    result: dict[str, Any] = {
        "cores": len(os.sched_getaffinity(0)),
        "model": arguments.model,
        "requests": {mode: sum(map(len, each)) for mode, each in found.items()},
        "reloads": len(took),
        "reload_seconds": sorted(ended - began for began, ended in took),
        "requests_during": len(during),
        "during_p99_seconds": float(np.quantile(during, 0.99)) if during else None,
        "during_p50_seconds": float(np.quantile(during, 0.5)) if during else None,
    }
    for quantile in (0.5, 0.95, 0.99):
        ratio = ratio_of(found, quantile)
        result[f"p{round(100 * quantile)}"] = {
            "off_seconds": pooled(found["off"], quantile),
            "on_seconds": pooled(found["on"], quantile),
            "ratio": ratio.value,
            "ratio_low": ratio.low,
            "ratio_high": ratio.high,
        }
    return result


def show(report: dict[str, Any]) -> bool:
    seconds = report["reload_seconds"]
    print(
        f"{report['model']} on {report['cores']} cores: {report['reloads']} reloads of "
        f"{seconds[0]:.1f} to {seconds[-1]:.1f} s, none of "
        f"{sum(report['requests'].values())} requests lost"
    )
    print(f"{'':8}{'without':>10}{'with':>10}{'ratio':>8}")
    for name in ("p50", "p95", "p99"):
        row = report[name]
        print(
            f"{name:8}{1000 * row['off_seconds']:8.1f}ms{1000 * row['on_seconds']:8.1f}ms"
            f"{row['ratio']:8.3f}  ({row['ratio_low']:.3f} to {row['ratio_high']:.3f})"
        )
    if report["requests_during"]:
        print(
            f"while a reload was under way: {report['requests_during']} requests, p50 "
            f"{1000 * report['during_p50_seconds']:.1f} ms, "
            f"p99 {1000 * report['during_p99_seconds']:.1f} ms"
        )
    met = bool(report["p99"]["ratio"] <= LIMIT)
    print(f"{'met   ' if met else 'MISSED'} p99 with a reload within 10 %")
    return met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repository", type=Path, default=ROOT / "model_repo")
    parser.add_argument("--model", default="emotion", help="a model with a task")
    parser.add_argument("--users", type=int, default=3)
    parser.add_argument("--pause", type=float, default=0.1, help="mean seconds between requests")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of a phase")
    parser.add_argument("--rounds", type=int, default=6, help="pairs of phases")
    parser.add_argument("--cores", type=int, help="use only so many of this machine's cores")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure here as well")
    arguments = parser.parse_args()
    if arguments.cores:
        usable = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, set(usable[: arguments.cores]))
    report = measure(arguments)
    met = show(report)
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
