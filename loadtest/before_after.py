"""This checkout against another one, such as the state before a change: both serve the same models.

    .venv/bin/python loadtest/before_after.py ../before [--seconds 4] [--rounds 6] [--json FILE]

Both servers run all the time and are asked in alternation, each with its own environment (.venv).
For each case: one client's median time, the rate of as many clients as keep its predictors busy,
the rate of answers while three times as many requests arrive, and the rate of one client while the
model is loaded anew without a break. A ratio above 1 says that this checkout is the better one;
its interval is that of round-wise resamples (90 %). Exit code 1 when a median is below --least.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from cases import Case, read_cases
from harness import ROOT, Connection, Server, running_server
from overload import FACTOR, crowd
from phases import checked, drive
from reload import KEY, reload
from tqdm import tqdm

from app.repository.layout import ModelRepository

REQUESTS = {"segment": 6, "sentiment": 60}
"""Of one client in a phase."""

SETTINGS = {"PADDLEPOOL_PROVE_GROUPS": "off", "PADDLEPOOL_ADMIN_KEY": KEY}

Measure = Callable[[Server, Case], float]

Taken = dict[tuple[str, str], dict[str, list[float]]]
"""What was measured, by kind and case, then by server: "before" and "after"."""


def one_client(server: Server, case: Case) -> float:
    """Requests a second, by the median time of one."""
    count = REQUESTS["segment" if "segment" in case.name else "sentiment"]
    with contextlib.closing(Connection(server.port)) as connection:
        return 1 / statistics.median(checked(connection, case).seconds for _ in range(count))


def busy_clients(case: Case) -> int:
    """As many as keep the predictors of its model at work."""
    config = case.model.config
    return max(case.clients_per_instance) * config.group(config.default_group).count


@contextlib.contextmanager
def reloading(server: Server, case: Case) -> Iterator[None]:
    """The case's model is loaded again and again."""
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            reload(server, case.model.name)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def measures(seconds: float) -> dict[str, Measure]:
    def overloaded(server: Server, case: Case) -> float:
        calm = drive(server, case, clients=busy_clients(case), seconds=seconds)
        rate = FACTOR * calm / case.rows
        found = crowd(server, case, rate=rate, seconds=seconds)
        if others := set(found["statuses"]) - {"200", "503"}:
            raise RuntimeError(f"{case.name}: statuses {', '.join(sorted(others))}")
        return float(found["rows_per_second"])

    def reloaded(server: Server, case: Case) -> float:
        with reloading(server, case):
            return drive(server, case, clients=1, seconds=seconds)

    return {
        "one client": one_client,
        "busy": lambda server, case: drive(
            server, case, clients=busy_clients(case), seconds=seconds
        ),
        "overloaded": overloaded,
        "reloaded": reloaded,
    }


def interval(before: list[float], after: list[float]) -> tuple[float, float, float]:
    """Median of the paired ratios, and within what 90 % of resampled medians lie."""
    ratios = np.asarray(after) / np.asarray(before)
    picks = np.random.default_rng(20).integers(0, len(ratios), (1000, len(ratios)))
    low, high = np.quantile(np.median(ratios[picks], axis=1), (0.05, 0.95))
    return float(np.median(ratios)), float(low), float(high)


def alternated(
    servers: Mapping[str, Server],
    cases: Sequence[Case],
    kinds: Mapping[str, Measure],
    *,
    rounds: int,
) -> Taken:
    """Every kind on every case, of one server and the other, in turns; warm."""
    taken: Taken = defaultdict(lambda: defaultdict(list))
    for server in servers.values():
        for case in cases:
            drive(server, case, clients=busy_clients(case), seconds=1.0)
    for number in tqdm(range(rounds), desc="rounds", disable=None):
        order = list(servers.items())[:: 1 if number % 2 else -1]
        for kind, measure in kinds.items():
            for case in cases:
                for name, server in order:
                    taken[kind, case.name][name].append(measure(server, case))
    return taken


def show(taken: Taken) -> float:
    """Print a line for each kind and case; the worst ratio."""
    worst = float("inf")
    print(f"{'':46}{'before':>10}{'after':>10}{'ratio':>8}")
    for (kind, case_name), found in taken.items():
        ratio, low, high = interval(found["before"], found["after"])
        worst = min(worst, ratio)
        before, after = (statistics.median(found[name]) for name in ("before", "after"))
        print(
            f"{f'{case_name}, {kind}':46}{before:10.2f}{after:10.2f}{ratio:8.3f}"
            f"  ({low:.3f} to {high:.3f})"
        )
    return worst


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("other", type=Path, help="the checkout to compare with, with its .venv")
    parser.add_argument("--repository", type=Path, default=ROOT / "model_repo")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of a phase")
    parser.add_argument("--rounds", type=int, default=6, help="pairs of phases of each kind")
    parser.add_argument("--least", type=float, default=0.97, help="least ratio, else exit code 1")
    parser.add_argument("--only", action="append", help="only these measures")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure here as well")
    arguments = parser.parse_args()
    cases = read_cases(ModelRepository(arguments.repository), requests=1)
    kinds = {
        name: measure
        for name, measure in measures(arguments.seconds).items()
        if not arguments.only or name in arguments.only
    }
    with contextlib.ExitStack() as stack:
        servers = {
            name: stack.enter_context(
                running_server(arguments.repository, environment=SETTINGS, checkout=checkout)
            )
            for name, checkout in (("before", arguments.other), ("after", ROOT))
        }
        taken = alternated(servers, cases, kinds, rounds=arguments.rounds)
        memory = {name: server.memory()["pss"] for name, server in servers.items()}
    worst = show(taken)
    print(f"{'memory, MB':46}" + "".join(f"{size / 1e6:10.0f}" for size in memory.values()))
    if arguments.json:
        report = [
            {"kind": kind, "case": case_name, **found} for (kind, case_name), found in taken.items()
        ]
        arguments.json.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", "utf-8")
    return 0 if worst >= arguments.least else 1


if __name__ == "__main__":
    sys.exit(main())
