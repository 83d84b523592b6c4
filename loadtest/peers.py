"""The same pictures and texts through this server and through its peers, in one table.

    .venv/bin/python loadtest/peers.py [--rounds N] [--task NAME] [--json FILE] [--no-peers]

This server is measured as it serves by default, after it has chosen its instance group.

Pictures (a JPEG of 1 MP): masks by `/segment`, the rembg server, LitServe, BentoML, MLServer and
bare loops over ONNX Runtime and OpenVINO; cut-outs as PNG by `/segment` and rembg. All run the
weights of model_repo/u2netp, the others as float32 ONNX. Texts: `/sentiment` and bare ONNX Runtime
loops. Everyone has the same cores and a worker for each of them; one run, in turns, so that a busy
machine slows all of them. The peers are installed once into .venv-peers*; nothing needs the network
after that. Exit code 0 whoever wins: it prints what it measures, beside what is asked for.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from harness import ROOT
from peer_contenders import Contender, Contest, pictures, texts
from tqdm import tqdm

from app.repository.layout import ModelRepository


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What is printed of a contender; ratios are to this server, above 1: more."""

    name: str
    task: str
    threads_each: int
    p50_seconds: float
    p95_seconds: float
    per_second: Mapping[str, float]
    memory_bytes: int
    latency_ratio: float
    throughput_ratio: Mapping[str, float]
    agreement: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One that is asked for: this server's over somebody's, beside its limit."""

    what: str
    measured: float
    limit: float
    at_least: bool

    @property
    def met(self) -> bool:
        return self.measured >= self.limit if self.at_least else self.measured <= self.limit


def measure(contest: Contest, *, seconds: float, rounds: int) -> None:
    """Latencies of one client, then the rate under each load, in turns; others stand idle."""
    contenders = contest.contenders
    for each in contenders:
        for _ in range(3):
            each.one()
    for number in tqdm(range(rounds), desc=contest.task, unit="round", disable=None):
        turn = number % len(contenders)
        for each in (*contenders[turn:], *contenders[:turn]):
            for _ in range(contest.requests):
                taken, each.result = each.one()
                each.seconds.append(taken)
            for load, busy in each.busy.items():
                each.rates.setdefault(load, []).append(busy(seconds))


def rows(contest: Contest) -> list[Row]:
    """The first one is what the others are compared with; ratios are medians over rounds."""
    ours = contest.contenders[0]
    return [
        Row(
            name=each.name,
            task=contest.task,
            threads_each=each.threads_each,
            p50_seconds=statistics.median(each.seconds),
            p95_seconds=float(np.quantile(each.seconds, 0.95)),
            per_second={load: statistics.median(rates) for load, rates in each.rates.items()},
            memory_bytes=each.memory(),
            latency_ratio=_ratio(each.seconds, ours.seconds),
            throughput_ratio={
                load: _ratio(rates, ours.rates[load]) for load, rates in each.rates.items()
            },
            agreement=_agreement(contest.task, each, ours),
        )
        for each in contest.contenders
    ]


def _ratio(theirs: Sequence[float], ours: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(theirs, ours, strict=True))


def _agreement(task: str, each: Contender, ours: Contender) -> str:
    """That it is the same work: how far the results are from ours."""
    if task == "texts":
        best = json.loads(ours.result)[0]["score"]
        score = best if each is ours else ast.literal_eval(each.result.decode())[0][1]
        return f"best score within {abs(score - best):.0e}"
    found, expected = (
        np.asarray(cv2.imdecode(np.frombuffer(c.result, np.uint8), cv2.IMREAD_UNCHANGED), float)
        for c in (each, ours)
    )
    if task == "cut-outs":
        found, expected = found[..., 3], expected[..., 3]
    return f"alpha within {np.abs(found - expected).mean():.2f} of 255 levels"


def show(contest: Contest, table: Sequence[Row], *, cores: int) -> None:
    """Latency, rate and memory, each beside its ratio to the first row."""
    loads = list(table[0].per_second)
    print(f"\n{contest.task} on {cores} cores, one run, in turns; ratios to the first line")
    print(
        f"{'':34}{'threads':>8}{'one client':>12}{'p95':>9}{'ratio':>7}"
        + "".join(f"{load + ', 1/s':>20}{'ratio':>7}" for load in loads)
        + f"{'memory':>10}"
    )
    for row in table:
        print(
            f"{row.name:34}{row.threads_each:8d}{1000 * row.p50_seconds:10.1f}ms"
            f"{1000 * row.p95_seconds:7.1f}ms{row.latency_ratio:7.2f}"
            + "".join(
                f"{row.per_second[load]:20.2f}{row.throughput_ratio[load]:7.2f}" for load in loads
            )
            + f"{row.memory_bytes / 1e6:8.0f}MB   {row.agreement}"
        )


def figures(task: str, table: Sequence[Row]) -> list[Figure]:
    """What is asked of this server, as far as those it is compared with took part."""
    found = []
    rembg = [row for row in table if row.name == "rembg server"]
    bare = [row for row in table if row.name.startswith("bare")]

    def faster(rivals: Sequence[Row], than: str, load: str, limit: float) -> None:
        if rivals:
            measured = min(1 / row.throughput_ratio[load] for row in rivals)
            what = f"{task}, {load}: a second, over {than}"
            found.append(Figure(what=what, measured=measured, limit=limit, at_least=True))

    def sooner(rivals: Sequence[Row], than: str, limit: float) -> None:
        if rivals:
            measured = max(1 / row.latency_ratio for row in rivals)
            what = f"{task}, one client: p50, over {than}"
            found.append(Figure(what=what, measured=measured, limit=limit, at_least=False))

    if task == "masks":
        for load in table[0].per_second:
            faster(rembg, "the rembg server's", load, 3.0)
            faster(bare, "the best bare float32 loop's", load, 2.1)
        sooner(rembg, "the rembg server's", 0.55)
    elif task == "cut-outs":
        for load in table[0].per_second:
            faster(rembg, "the rembg server's", load, 2.5)
    else:
        sooner(bare, "the bare float32 ONNX Runtime loop's", 1.5)
        for load, limit in zip(table[0].per_second, (1.2, 2.5), strict=True):
            faster(bare, "bare float32 ONNX Runtime loops'", load, limit)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repository", type=Path, default=ROOT / "model_repo")
    parser.add_argument("--rounds", type=int, default=8, help="turns of each contender")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a busy phase")
    parser.add_argument(
        "--task", action="append", choices=("pictures", "texts"), help="only this one"
    )
    parser.add_argument(
        "--no-peers", dest="peers", action="store_false", help="bare loops alone beside this server"
    )
    parser.add_argument("--cores", type=int, help="use only so many of this machine's cores")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure here as well")
    arguments = parser.parse_args()
    if arguments.cores:
        os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[: arguments.cores]))
    cores = len(os.sched_getaffinity(0))
    report: dict[str, Any] = {"cores": cores, "rows": [], "figures": []}
    repository = ModelRepository(arguments.repository)
    asked: list[Figure] = []
    with tempfile.TemporaryDirectory() as directory:
        for task in arguments.task or ("pictures", "texts"):
            taking_part = (
                pictures(repository, Path(directory), threads=cores, peers=arguments.peers)
                if task == "pictures"
                else texts(repository, Path(directory), threads=cores)
            )
            with taking_part as contests:
                for contest in contests:
                    measure(contest, seconds=arguments.seconds, rounds=arguments.rounds)
                    table = rows(contest)
                    show(contest, table, cores=cores)
                    asked += figures(contest.task, table)
                    report["rows"] += [asdict(row) for row in table]
    print()
    for each in asked:
        sign = "≥" if each.at_least else "≤"
        print(
            f"{'met   ' if each.met else 'MISSED'} {each.what}: {each.measured:.2f} "
            f"({sign} {each.limit:g})"
        )
    report["figures"] = [asdict(each) | {"met": each.met} for each in asked]
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
