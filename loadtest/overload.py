"""What becomes of three times as much as the server can answer, measured against a real one.

    .venv/bin/python loadtest/overload.py [--seconds 20] [--rounds 3] [--json FILE]

For each case, in turns: a calm phase in which as many clients as keep its predictors busy ask
without a pause, and a phase in which requests arrive at three times that rate, whether the ones
before are answered or not. Printed are the statuses, how many answers a second are left of the calm
rate, how soon a refusal comes, and the memory. Exit code 1 when a target is missed: nothing but 200
and 503, 90 % of the calm rate, refusals within 50 ms (p99), and after the first such phase, which
fills the queue for the first time, no more than a tenth of memory on top.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from cases import read_cases
from closed_loop import HttpWay
from harness import ROOT, Server, running_server
from open_loop import arrivals

from app.repository.layout import ModelRepository

FACTOR = 3.0
TARGETS = {"goodput": 0.9, "refusal_p99_ms": 50.0, "memory": 1.1}


def crowd(way: HttpWay, *, rate: float, seconds: float) -> dict[str, Any]:
    """Requests of one kind at a steady rate; how they ended."""
    begin = time.perf_counter()
    ended = arrivals(way.port, way.request, rate=rate, seconds=seconds)
    elapsed = time.perf_counter() - begin
    statuses = Counter(str(each.status) for each in ended)
    return {
        "offered_per_second": len(ended) / elapsed,
        "statuses": dict(statuses),
        "units_per_second": way.units * statuses["200"] / elapsed,
        "refusals_ms": sorted(1000 * each.seconds for each in ended if each.status == 503),
    }


def overload(
    server: Server, way: HttpWay, *, clients: int, seconds: float, rounds: int
) -> dict[str, Any]:
    way.rate(clients=clients, seconds=1.0)
    memory = [server.memory()]
    calm: list[float] = []
    crowded: list[dict[str, Any]] = []
    for _ in range(rounds):
        calm.append(way.rate(clients=clients, seconds=seconds))
        crowded.append(crowd(way, rate=FACTOR * calm[-1] / way.units, seconds=seconds))
        memory.append(server.memory())
    refusals = sorted(wait for phase in crowded for wait in phase["refusals_ms"])
    statuses: Counter[str] = Counter()
    for phase in crowded:
        statuses.update(phase["statuses"])
    ratios = [phase["units_per_second"] / alone for phase, alone in zip(crowded, calm, strict=True)]
    return {
        "calm_per_second": statistics.median(calm),
        "offered_per_second": statistics.median(p["offered_per_second"] for p in crowded),
        "per_second": statistics.median(phase["units_per_second"] for phase in crowded),
        "goodput": statistics.median(ratios),
        "goodput_lowest": min(ratios),
        "goodput_highest": max(ratios),
        "statuses": dict(statuses),
        "refusal_p50_ms": statistics.median(refusals) if refusals else None,
        "refusal_p99_ms": refusals[int(len(refusals) * 0.99)] if refusals else None,
        "memory_bytes": memory,
    }


def missed(found: dict[str, Any]) -> list[str]:
    """What a case has not reached, in words."""
    faults = []
    if others := set(found["statuses"]) - {"200", "503"}:
        faults.append(f"statuses {', '.join(sorted(others))}")
    if found["goodput"] < TARGETS["goodput"]:
        faults.append(f"{100 * found['goodput']:.1f} % of the calm rate is left")
    if found["refusal_p99_ms"] is None or found["refusal_p99_ms"] > TARGETS["refusal_p99_ms"]:
        faults.append(f"p99 of a refusal is {found['refusal_p99_ms']} ms")
    first, last = found["memory_bytes"][1], found["memory_bytes"][-1]  # after such phases
    if last > TARGETS["memory"] * first:
        faults.append(f"memory went on from {first / 1e6:.0f} to {last / 1e6:.0f} MB")
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repository", type=Path, default=ROOT / "model_repo")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of a phase")
    parser.add_argument("--rounds", type=int, default=3, help="pairs of phases for each case")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure here as well")
    arguments = parser.parse_args()
    report, faults = {}, []
    with running_server(arguments.repository) as server:
        for case in read_cases(ModelRepository(arguments.repository)):
            if case.name == "1 text":  # what a single text costs its client would be measured
                continue
            found = report[case.name] = overload(
                server,
                HttpWay(server.port, case.request, case.rows),
                clients=case.clients,
                seconds=arguments.seconds,
                rounds=arguments.rounds,
            )
            faults += [f"{case.name}: {fault}" for fault in missed(found)]
            print(case.name, json.dumps(found, indent=2), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", "utf-8")
    for fault in faults:
        print(f"MISSED {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
