"""What choosing the default group costs the users: latencies while candidates are measured and the
best one is swapped in, against a server that measures nothing.

    .venv/bin/python loadtest/swap.py [--model emotion] [--users N] [--pause S] [--json FILE]

Each phase has a server of its own that serves this one model, and users who pause between requests.
With choosing, the phase lasts until the chosen group has taken over and one more second has passed,
or for `--seconds` at most; the phase beside it is as long. Requests that the new group answered are
faster and do not count for the ratio: what choosing costs is left. Exit code 1 when a request
fails, when nothing was chosen, or when the p99 with choosing is more than 10 % above that without.
"""

from __future__ import annotations

import argparse
import http.client
import json
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from cases import Case
from harness import HOST, Server, running_server
from interleaved_runs import MODES, run, show_table, single_row_cases, summary, users
from tqdm import tqdm

LIMIT = 1.10
LOOK_SECONDS = 0.5
AFTER_SECONDS = 1.0
WINDOW_SECONDS = 3.0
"""Before the change is seen: the second group opens, takes over, and the first one is closed."""


@dataclass(frozen=True, slots=True)
class Phase:
    """Seconds of the requests before the change, of those after it, and of those in the
    WINDOW_SECONDS before it was seen; how long it lasted; the choice at its end."""

    before: list[float]
    around: list[float]
    after: list[float]
    lasted: float
    choice: Mapping[str, Any]
    memory: int


def choice(server: Server) -> Mapping[str, Any]:
    connection = http.client.HTTPConnection(HOST, server.port, timeout=30)
    connection.request("GET", "/info")
    [model] = json.loads(connection.getresponse().read())["models"]
    connection.close()
    return dict(model["choice"])


def phase(
    repository: Path, case: Case, *, mode: str, seconds: float, number: int, pause: float, seed: int
) -> Phase:
    """`seconds` is the length without choosing, and the most with it."""
    environment = {"PADDLEPOOL_PROVE_GROUPS": "off" if mode == "off" else "started"}
    with running_server(repository, environment=environment) as server:
        with users(server, [(case, pause)] * number, seed=seed) as answered:
            began = time.perf_counter()
            while time.perf_counter() < began + seconds:
                time.sleep(LOOK_SECONDS)
                if choice(server)["by"] != "start":  # asked in both modes
                    break
            changed = time.perf_counter()
            time.sleep(AFTER_SECONDS if mode == "on" else 0)
        requests = [each for user in answered for each in user]
        return Phase(
            [each.seconds for each in requests if each.began < changed],
            [each.seconds for each in requests if each.overlaps(changed - WINDOW_SECONDS, changed)],
            [each.seconds for each in requests if each.began >= changed],
            changed - began,
            choice(server),
            server.memory()["pss"],
        )


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    [case] = [
        each
        for each in single_row_cases(arguments.repository)
        if each.model.name == arguments.model
    ]
    found: dict[str, list[list[float]]] = {mode: [] for mode in MODES}
    chosen = []
    with tempfile.TemporaryDirectory() as scratch:
        repository = Path(scratch)
        shutil.copytree(arguments.repository / arguments.model, repository / arguments.model)
        lasted = arguments.seconds
        for number in tqdm(range(arguments.rounds), unit="round", disable=None):
            for mode in reversed(MODES):  # how long the one without is, the other one tells
                done = phase(
                    repository,
                    case,
                    mode=mode,
                    seconds=arguments.seconds if mode == "on" else lasted,
                    number=arguments.users,
                    pause=arguments.pause,
                    seed=number,
                )
                found[mode].append(done.before)
                if mode == "on":
                    lasted = done.lasted
                    chosen.append(
                        {
                            "seconds": done.lasted,
                            "after": len(done.after),
                            "around": len(done.around),
                            "p99_around": float(np.quantile(done.around, 0.99)),
                            "p99_before": float(np.quantile(done.before, 0.99)),
                            "memory": done.memory,
                            **done.choice,
                        }
                    )
    return {
        "model": arguments.model,
        "users": arguments.users,
        "pause_seconds": arguments.pause,
        "chosen": chosen,
        "latency": {case.name: summary(found)},
    }


def show(report: Mapping[str, Any]) -> bool:
    """Print the table; whether the target is met."""
    print(
        f"{report['model']} on {report['cores']} cores, {report['users']} users who pause for "
        f"{report['pause_seconds']:.2f} s"
    )
    for each in report["chosen"]:
        print(
            f"{each['group']} ({each['by']}) after {each['seconds']:.0f} s, {each['after']} "
            f"requests after that, settled at {each['memory'] / 1e6:.0f} MB: {each['reason']}"
        )
        print(
            f"  p99 of {each['around']} requests within {WINDOW_SECONDS:.0f} s before it was seen "
            f"{1000 * each['p99_around']:.1f} ms, of all before it {1000 * each['p99_before']:.1f}"
        )
    show_table(report["latency"])
    [latency] = report["latency"].values()
    print(f"none of {sum(latency['requests'].values())} requests lost")
    settled = all(each["by"] != "start" for each in report["chosen"])
    within = settled and bool(latency["p99"]["ratio"] <= LIMIT)
    print(f"{'met   ' if within else 'MISSED'} chosen, and p99 meanwhile within 10 %")
    return within


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--model", default="emotion", help="a model with a task")
    parser.add_argument("--users", type=int, default=2)
    parser.add_argument("--pause", type=float, default=0.2, help="seconds, on average")
    run(parser, seconds=120.0, rounds=4, measure=measure, show=show)


if __name__ == "__main__":
    main()
