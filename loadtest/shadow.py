"""What shadowing costs users: latencies with it and without it, interleaved in one run.

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
import re
import time
from collections.abc import Mapping
from typing import Any

from harness import Connection, Server, request, running_server
from interleaved_runs import MODES, run, show_table, single_row_cases, summary, users
from tqdm import tqdm

LIMIT = 1.05
REST_SECONDS = 1.0
MOST_REST_SECONDS = 30.0
PAUSE = {"segment": 0.4, "sentiment": 0.08}
"""Mean seconds between a user's requests, drawn from an exponential distribution."""


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
    cases = single_row_cases(arguments.repository)
    working = [
        (case, PAUSE["segment" if "segment" in case.name else "sentiment"]) for case in cases
    ]
    common = {"PADDLEPOOL_PROVE_GROUPS": "off"}
    shadowing = {
        "PADDLEPOOL_SHADOW_FRACTION": str(arguments.fraction),
        "PADDLEPOOL_SHADOW_GROUPS": arguments.groups,
        "PADDLEPOOL_SHADOW_MAX_PREDICTORS": "16",
    }
    found: dict[str, dict[str, list[list[float]]]] = {
        case.name: {mode: [] for mode in MODES} for case in cases
    }
    with (
        running_server(arguments.repository, environment=common) as plain,
        running_server(arguments.repository, environment=common | shadowing) as shadowed,
    ):
        servers = {"off": plain, "on": shadowed}
        for server in servers.values():  # opens the shadow predictors, and warms everything up
            with users(server, working, seed=0):
                time.sleep(2.0)
        come_to_rest(shadowed)
        before = replays(shadowed)
        for number in tqdm(range(arguments.rounds), unit="round", disable=None):
            for mode in MODES if number % 2 == 0 else reversed(MODES):
                with users(servers[mode], working, seed=number) as answered:
                    time.sleep(arguments.seconds)
                for case, taken in zip(cases, answered, strict=True):
                    found[case.name][mode].append([each.seconds for each in taken])
                come_to_rest(shadowed)
        after = replays(shadowed)
        memory = {mode: server.memory()["pss"] for mode, server in servers.items()}
    return {
        "fraction": arguments.fraction,
        "replays": {name: after[name] - before.get(name, 0) for name in after if after[name]},
        "memory_bytes": memory,
        "latency": {name: summary(phases) for name, phases in found.items()},
    }


def show(report: Mapping[str, Any]) -> bool:
    """Print the table; whether the target is met."""
    print(f"{report['cores']} cores, {report['fraction']:.0%} of the requests replayed in between:")
    for labels, count in report["replays"].items():
        print(f"    {count:6.0f} replays {labels}")
    met = any(report["replays"].values())
    if not met:
        print("MISSED nothing was replayed: this run shows nothing")
    show_table(report["latency"])
    for name, found in report["latency"].items():
        kept = found["p99"]["ratio"] <= LIMIT
        met = met and kept
        print(f"{'met   ' if kept else 'MISSED'} {name}: p99 with shadowing within 5 %")
    on, off = (report["memory_bytes"][mode] / 1e6 for mode in ("on", "off"))
    print(f"memory of all processes: {off:.0f} MB without, {on:.0f} MB with")
    return met


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--groups", default="native,onnxruntime", help="groups to replay on")
    parser.add_argument("--fraction", type=float, default=1.0, help="share of requests replayed")
    run(parser, seconds=8.0, rounds=12, measure=measure, show=show)


if __name__ == "__main__":
    main()
