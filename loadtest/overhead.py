"""What the server adds to the predictor's own run, measured against a real server process.

    .venv/bin/python loadtest/overhead.py [--repository DIR] [--json FILE]

One client's latency beyond inference with its breakdown; throughput beside the same predictors in
a bare loop, in interleaved phases of one run, so that a busy machine slows both; liveness while
every core works; time to ready; idle memory. Exit code 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bare import BarePool
from cases import read_cases
from harness import ROOT, running_server
from phases import latency, liveness, throughput

from app.contracts.reasons import STAGES
from app.repository.layout import ModelRepository


@dataclass(frozen=True, slots=True)
class Target:
    """One line of the verdict; `measured` and `limit` in `unit`."""

    what: str
    measured: float
    limit: float
    unit: str
    at_least: bool = False

    @property
    def met(self) -> bool:
        return self.measured >= self.limit if self.at_least else self.measured <= self.limit


def measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    repository = ModelRepository(arguments.repository)
    cases = read_cases(repository, requests=arguments.requests)
    report: dict[str, Any] = {"latency": {}, "throughput": {}}
    targets = []
    with running_server(arguments.repository) as server, contextlib.ExitStack() as stack:
        report["seconds_to_ready"] = server.seconds_to_ready
        report["idle_memory"] = server.memory()
        targets.append(Target("start to ready", server.seconds_to_ready, 20, "s"))
        targets.append(
            Target("idle memory, all processes", report["idle_memory"]["pss"] / 1e9, 2, "GB")
        )
        pools = [
            (case, stack.enter_context(contextlib.closing(BarePool(case.model, case.inputs))))
            for case in cases
        ]
        for case, bare in pools:
            bare.run(0.2)
            found = report["latency"][case.name] = latency(server, case, bare)
            limit = 40 if "segment" in case.name else 5
            if case.rows == 1:
                what = f"{case.name}: p50 beyond the predictor's run"
                targets.append(Target(what, found["beyond_infer_p50_ms"], limit, "ms"))
        for case, bare in pools:
            for each in case.clients_per_instance:
                clients = each * bare.size
                found = throughput(
                    server,
                    case,
                    bare,
                    clients=clients,
                    seconds=arguments.seconds,
                    rounds=arguments.rounds,
                )
                report["throughput"][f"{case.name}, {clients} clients"] = found
                # One client that waits leaves a predictor of short runs idle (decision 11).
                if each == max(case.clients_per_instance):
                    what = f"{case.name}, {clients} clients: throughput of the bare loop's"
                    targets.append(Target(what, 100 * found["ratio"], 93, "%", at_least=True))
        report["liveness"] = liveness(server, cases, seconds=5 * arguments.seconds)
        targets.append(
            Target("liveness while saturated: p99", report["liveness"]["p99_ms"], 50, "ms")
        )
        report["busy_memory"] = server.memory()
    report["targets"] = [asdict(target) | {"met": target.met} for target in targets]
    return report, targets


def show(report: dict[str, Any], targets: Sequence[Target]) -> None:
    print(f"\n{'one client, p50 in ms':38}{'wall':>8}", end="")
    print("".join(f"{stage:>12}" for stage in STAGES), f"{'rest':>7}{'bare run':>10}")
    for name, found in report["latency"].items():
        stages = "".join(
            f"{found['p50_ms'][s]:12.2f}" if s in found["p50_ms"] else f"{'-':>12}" for s in STAGES
        )
        bare = f"{found['bare_run_p50_ms']:10.2f}" if "bare_run_p50_ms" in found else f"{'-':>10}"
        wall, rest = found["p50_ms"]["wall"], found["uncovered_p50_ms"]
        print(f"{name:38}{wall:8.2f}{stages} {rest:7.2f}{bare}")
    print(f"\n{'rows a second':46}{'server':>12}{'bare loop':>12}{'busy':>8}{'ratio':>9}")
    for name, found in report["throughput"].items():
        print(
            f"{name:46}{found['server_rows_per_second']:12.2f}"
            f"{found['bare_rows_per_second']:12.2f}{100 * found['predictors_busy']:7.1f}%"
            f"{100 * found['ratio']:8.1f}%"
            f"  ({100 * found['ratio_lowest']:.1f} … {100 * found['ratio_highest']:.1f})"
        )
    live, idle, busy = report["liveness"], report["idle_memory"], report["busy_memory"]
    print(
        f"\nliveness beside {live['clients']} clients: p50 {live['p50_ms']:.1f}, "
        f"p99 {live['p99_ms']:.1f}, max {live['max_ms']:.1f} ms in {live['probes']} probes"
    )
    print(
        f"memory of {idle['processes']} processes: idle {idle['pss'] / 1e6:.0f} MB, after the load "
        f"{busy['pss'] / 1e6:.0f} MB; shared pages counted in each process: "
        f"{idle['rss'] / 1e6:.0f} and {busy['rss'] / 1e6:.0f} MB\n"
    )
    for target in targets:
        sign = "≥" if target.at_least else "≤"
        print(
            f"{'met   ' if target.met else 'MISSED'} {target.what}: "
            f"{target.measured:.1f} {target.unit} (target {sign} {target.limit:g})"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repository", type=Path, default=ROOT / "model_repo")
    parser.add_argument("--requests", type=int, default=40, help="requests for a picture's latency")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a throughput phase")
    parser.add_argument("--rounds", type=int, default=10, help="pairs of throughput phases")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure here as well")
    arguments = parser.parse_args()
    report, targets = measure(arguments)
    show(report, targets)
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", "utf-8")
    return 0 if all(target.met for target in targets) else 1


if __name__ == "__main__":
    sys.exit(main())
