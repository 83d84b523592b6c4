"""Measure the requests per second of a replica, and the number of replicas for a load.

    .venv/bin/python loadtest/capacity.py --write docs/capacity.md [--haproxy PATH]

Measures with one core and with two, in float32 and with the groups that the server chooses, and
also the processor time of a request in the API process and in the balancer. The figures go to a
JSON file beside the page; `--render docs/capacity.md` writes the page from that file. It takes
eleven minutes on a quiet machine with at least two cores.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import re
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from balanced import CONFIGURATION, balancer
from cases import TEXT, mask_request, text_request, wait_chosen
from closed_loop import HttpWay, checked
from harness import ROOT, Server, ask, cpu_seconds, descendants, request, running_server
from inputs import draw_picture
from open_loop import arrivals
from tqdm import tqdm

from app.contracts.resources import available_cores
from app.observability.build_info import describe_machine

Row = Mapping[str, Any]

FLOAT32, CHOSEN = "float32", "chosen"
WANTED = (100, 1_000, 10_000)
PLANNED = ("mask of 1 MP", "1 text", "32 texts")
USED = 0.7
"""Planned share of a replica's capacity: the rest is for bursts and for replacing a replica."""
LOADS = (0.5, 0.7, 0.9)
LINK_BITS = 10e9
WORDS = {"balancer": "one core of the balancer", "network": "the balancer's link"}

INTRODUCTION = """\
# Capacity

`.venv/bin/python loadtest/capacity.py --write docs/capacity.md` measured and wrote this page on

> {machine}

The clients ran on the same cores. The ratios and the calculations apply elsewhere; the times belong
to this machine, so run the command on yours. A replica is one container: one API process with its
predictors.

## What one replica answers

The table shows requests a second. A few clients (two for each core, four for texts) each send the
next request when the last one is answered. A mask is `/segment?output=mask` of a JPEG; a text has
41 characters. `float32` is the group `onednn`; `chosen` is the default group that the server chose
by its own measurements, whose name is in brackets.
"""

OTHERS = """\
The same measured on

> {machine}
"""

LATENCY = """\
## How long a request takes

The table shows the 95th and the 99th percentile in milliseconds, with {cores} cores and the chosen
groups. Requests arrive at random times, like those of many users, at the given share of the rate
above. A rejected request counts as 30 s.
"""

START = """\
## How long a start takes

A server is ready after {seconds:.1f} s. The API process uses {api:.1f} s of processor time, mostly
for imports. Predictors open their model, check it and run each shape of `warmup`. The child
processes (codec processes and predictors) use {children} s.
"""

COSTS = """\
## What one request costs

The figures are for {cores} cores and the chosen groups. The table shows the processor time of all
processes of the replica, of its API process alone, and of the balancer (HAProxy in front of one
replica), and the size of a request with its reply.
"""

CEILINGS = """\
## The limit of each part

- **API process**: it computes on one core at a time, so its limit is 1 / its time for a request. A
  replica with more cores than the number in brackets reaches this limit before its predictors are
  busy.
- **Balancer**: its limit is 1 / its time for a request, for each core that it has.
- **Network**: the limit is {link:g} Gbit/s / (8 × bytes of a request) for the balancer's link,
  which carries every request.
"""

REPLICAS = """\
## How many replicas

The number of replicas is the requests a second / ({used} × the requests a second of one replica),
rounded up. Each replica has {cores} cores and the chosen groups; {spare:.0%} of its capacity remain
for bursts and for a replica that is being replaced. Memory is replicas × {memory:.2f} GB. A million
requests cost 1,000,000 / 3,600 × {cores} cores × {price:g} / ({used} × the requests a second of one
replica), if a core costs {price:g} an hour (`--price`).
"""
MEGAPIXELS = (0.3, 1.0, 12.0)
CORES = (1, 2)
KEPT = ROOT / "runs"
"""Choices are kept for the next run, which then need not wait."""
PATIENT = {"PADDLEPOOL_TIMEOUT_DEFAULT_MS": "30000"}
SETTINGS = {
    FLOAT32: PATIENT | {"PADDLEPOOL_PROVE_GROUPS": "off"},
    CHOSEN: PATIENT | {"PADDLEPOOL_PROVE_GROUPS": "started"},
}
REFUSED_SECONDS = 30.0
PROBE = "GET /v2/health/live"


def requests() -> dict[str, bytes]:
    """A mask of each size, one text and 32 texts, by name."""
    masks = {f"mask of {size:g} MP": mask_request(sized(size)) for size in MEGAPIXELS}
    return masks | {"1 text": text_request(TEXT), "32 texts": text_request([TEXT] * 32)}


def sized(megapixels: float) -> bytes:
    """The picture of all benchmarks as a JPEG of another size."""
    width = round(math.sqrt(megapixels * 1e6 * 4 / 3))
    return draw_picture(width, width * 3 // 4, seed=7).data


@contextlib.contextmanager
def only_cores(count: int) -> Iterator[None]:
    """Limit processes that are started in the block to this many cores."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(sorted(cores)[:count]))
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


@contextlib.contextmanager
def replica(cores: int, precision: str) -> Iterator[Server]:
    """Run a server on this many cores; if it may choose its groups, wait until it has."""
    with contextlib.ExitStack() as stack:
        with only_cores(cores):
            kept = {"PADDLEPOOL_STATE_FILE": str(KEPT / f"capacity-{cores}.json")}
            settings = SETTINGS[precision] | (kept if precision == CHOSEN else {})
            server = stack.enter_context(running_server(environment=settings))
        if precision == CHOSEN:
            wait_chosen(server)
        yield server


def measured(
    server: Server, name: str, asked: bytes, *, clients: int, seconds: float
) -> dict[str, Any]:
    """Requests per second, and the processor seconds and bytes of one request, after a warm-up."""
    reply = checked(ask(server.port, asked))
    way = HttpWay(server.port, asked)
    way.rate(clients=clients, seconds=seconds / 4)
    before = cpu_seconds(server.pid), cpu_seconds(server.pid, below=False)
    balancing = cpu_seconds(os.getpid(), command="haproxy")
    began = time.perf_counter()
    rate = way.rate(clients=clients, seconds=seconds)
    done = rate * (time.perf_counter() - began)
    return {
        "request": name,
        "group": reply.headers.get("x-predictor", ""),
        "per_second": rate,
        "cpu_seconds": (cpu_seconds(server.pid) - before[0]) / done,
        "api_cpu_seconds": (cpu_seconds(server.pid, below=False) - before[1]) / done,
        "proxy_cpu_seconds": (cpu_seconds(os.getpid(), command="haproxy") - balancing) / done,
        "bytes": len(asked) + len(reply.body),
    }


def latency(server: Server, asked: bytes, *, rate: float, seconds: float) -> list[list[float]]:
    """The 95th and 99th percentile of the latency at each of LOADS."""
    found = []
    for load in LOADS:
        draw = random.Random(1)
        ended = arrivals(server.port, asked, rate=load * rate, seconds=seconds, draw=draw)
        seconds_of = [each.seconds if each.status == 200 else REFUSED_SECONDS for each in ended]
        taken = statistics.quantiles(seconds_of, n=100, method="inclusive")
        found.append([taken[94], taken[98]])
    return found


def start() -> dict[str, Any]:
    """Seconds until a server with all cores is ready, and the processor seconds of each part."""
    began = time.perf_counter()
    with running_server(environment=SETTINGS[FLOAT32]) as server:
        seconds = time.perf_counter() - began
        children = [cpu_seconds(pid, below=False) for pid in descendants(server.pid)]
        api = cpu_seconds(server.pid, below=False)
    return {"seconds": seconds, "api_cpu_seconds": api, "child_cpu_seconds": children}


def replica_rows(asked: Mapping[str, bytes], seconds: float) -> Iterator[dict[str, Any]]:
    for cores in (count for count in CORES if count <= int(available_cores())):
        for precision in SETTINGS:
            with replica(cores, precision) as server:
                bar = tqdm(asked.items(), desc=f"{cores} cores, {precision}", disable=None)
                for name, sent in bar:
                    clients = cores * (4 if "text" in name else 2)
                    found = measured(server, name, sent, clients=clients, seconds=seconds)
                    memory = server.memory()
                    row = {"cores": cores, "precision": precision, "memory": memory} | found
                    if precision == CHOSEN and cores == max(CORES):
                        rate = found["per_second"]
                        row["latency"] = latency(server, sent, rate=rate, seconds=4 * seconds)
                    yield row


def proxy_rows(asked: Mapping[str, bytes], seconds: float, haproxy: Path) -> dict[str, Any]:
    """The balancer's cost per request with one replica and a request that costs almost nothing."""
    probe = {PROBE: request("GET", "/v2/health/live")}
    with (
        tempfile.TemporaryDirectory() as directory,
        running_server(environment=SETTINGS[FLOAT32]) as server,
        balancer(haproxy, [server.port], Path(directory), environment=PATIENT) as port,
    ):
        through = replace(server, port=port)
        return {
            "api": [
                measured(server, name, sent, clients=4, seconds=seconds)
                for name, sent in probe.items()
            ],
            "proxy": [
                measured(through, name, sent, clients=4, seconds=seconds)
                for name, sent in (probe | dict(asked)).items()
            ],
            "balanced": balanced_replicas(),
        }


def balanced_replicas() -> int:
    """Maximum number of replicas in the committed configuration of the balancer."""
    found = re.search(r"server-template \w+ (\d+)", CONFIGURATION.read_text("utf-8"))
    if found is None:
        raise RuntimeError(f"no server-template in {CONFIGURATION.name}")
    return int(found[1])


def page(report: Mapping[str, Any], *, price: float = 0.04) -> str:
    """Build the page from a report; sums use the figures as printed."""
    rows: Sequence[Row] = [as_shown(row) for row in report["replicas"]]
    cores = max(row["cores"] for row in rows)
    costs = [row for row in rows if (row["cores"], row["precision"]) == (cores, CHOSEN)]
    proxy = {row["request"]: as_shown(row) for row in report["proxy"]}
    memory = max(row["memory"] for row in costs)
    planned = [row for row in costs if row["request"] in PLANNED]
    parts = [
        INTRODUCTION.format(machine=report["machine"]),
        _rates(rows),
        *_others(report.get("others", {})),
        *_latency(costs),
        *_start(report),
        COSTS.format(cores=cores),
        _costs(costs, proxy),
        CEILINGS.format(link=LINK_BITS / 1e9),
        _ceilings(costs, proxy),
        _api_check(as_shown(report["api"][0])),
        "`loadtest/with_without.py haproxy` measures the time that a balancer adds to requests.\n",
        REPLICAS.format(used=USED, cores=cores, spare=1 - USED, memory=memory / 1e9, price=price),
        _replicas(planned, proxy, memory, price),
        "## What breaks first\n",
        "".join(_first(row, proxy) for row in planned)
        + f"- `deploy/haproxy/haproxy.cfg` has room for {report['balanced']} replicas; for more, "
        "raise the number in its\n  `server-template`.\n",
    ]
    return "\n".join(parts)


def other_machines(before: Mapping[str, Any], now: Row) -> dict[str, Sequence[Row]]:
    """What the file of an earlier run knows about other processors than that of this run."""
    known = dict(before.get("others", {})) | {before["machine"]: before["replicas"]}
    here = now["machine"].partition(";")[0]
    return {machine: rows for machine, rows in known.items() if machine.partition(";")[0] != here}


def as_shown(row: Row) -> Row:
    """Round the row as the page prints it."""
    digits = {"cpu_seconds": 4, "api_cpu_seconds": 5, "proxy_cpu_seconds": 6, "memory": -7}
    return {
        **row,
        **{name: round(row[name], places) for name, places in digits.items() if name in row},
        "per_second": float(_number(row["per_second"]).replace(",", "")),
        "bytes": 1e3 * float(_number(row["bytes"] / 1e3).replace(",", "")),
    }


def replicas_for(wanted: float, per_second: float) -> int:
    return math.ceil(wanted / (USED * per_second))


def ceilings(row: Row, proxy: Row) -> dict[str, float]:
    """Requests per second that each part can handle: API process, one balancer core, the link."""
    return {
        "API process": 1 / row["api_cpu_seconds"],
        "balancer": 1 / proxy["proxy_cpu_seconds"],
        "network": LINK_BITS / 8 / row["bytes"],
    }


def _rates(rows: Sequence[Row]) -> str:
    kinds = list(dict.fromkeys((row["cores"], row["precision"]) for row in rows))
    found = {(row["request"], row["cores"], row["precision"]): row for row in rows}
    lines = [
        [name, *(_rate(found[name, *kind]) for kind in kinds)]
        for name in dict.fromkeys(row["request"] for row in rows)
    ]
    memory = {(row["cores"], row["precision"]): row["memory"] for row in rows}
    lines.append(["memory, GB", *(f"{memory[kind] / 1e9:.2f}" for kind in kinds)])
    heads = (f"{n} core{'s' if n > 1 else ''}, {precision}" for n, precision in kinds)
    return _table(["", *heads], lines)


def _others(machines: Mapping[str, Sequence[Row]]) -> Iterator[str]:
    """What other processors answered when this command last ran there."""
    for machine, rows in machines.items():
        yield OTHERS.format(machine=machine)
        yield _rates([as_shown(row) for row in rows])


def _latency(rows: Iterable[Row]) -> Iterator[str]:
    lines = [
        [row["request"], *(f"{1e3 * p95:.0f}, {1e3 * p99:.0f}" for p95, p99 in row["latency"])]
        for row in rows
        if "latency" in row
    ]
    if lines:
        yield LATENCY.format(cores=max(row["cores"] for row in rows))
        yield _table(["", *(f"{load:.0%}" for load in LOADS)], lines)


def _start(report: Mapping[str, Any]) -> Iterator[str]:
    if found := report.get("start"):
        yield START.format(
            seconds=found["seconds"],
            api=found["api_cpu_seconds"],
            children=", ".join(f"{each:.1f}" for each in found["child_cpu_seconds"]),
        )


def _rate(row: Row) -> str:
    group = f" ({row['group']})" if row["precision"] == CHOSEN else ""
    return f"{_number(row['per_second'])}{group}"


def _costs(rows: Iterable[Row], proxy: Mapping[str, Row]) -> str:
    return _table(
        ["", "all processes, ms", "API process, ms", "balancer, ms", "kB"],
        [
            [
                row["request"],
                f"{1e3 * row['cpu_seconds']:.1f}",
                f"{1e3 * row['api_cpu_seconds']:.2f}",
                f"{1e3 * proxy[row['request']]['proxy_cpu_seconds']:.3f}",
                _number(row["bytes"] / 1e3),
            ]
            for row in rows
        ],
    )


def _ceilings(rows: Iterable[Row], proxy: Mapping[str, Row]) -> str:
    lines = []
    for row in rows:
        ends = ceilings(row, proxy[row["request"]])
        largest = ends["API process"] / (row["per_second"] / row["cores"])
        api = f"{_number(ends['API process'])} ({largest:.0f} cores)"
        lines.append([row["request"], api, _number(ends["balancer"]), _number(ends["network"])])
    return _table(["requests a second", "API process", "balancer, one core", "network"], lines)


def _api_check(probe: Row) -> str:
    seconds = probe["api_cpu_seconds"]
    return (
        f"A check of this calculation: `{probe['request']}`, which computes nothing, takes "
        f"{1e3 * seconds:.2f} ms of\nthe API process. That gives {_number(1 / seconds)} requests "
        f"a second; {_number(probe['per_second'])} were answered, with the clients on\n"
        "the same cores.\n"
    )


def _replicas(rows: Iterable[Row], proxy: Mapping[str, Row], memory: float, price: float) -> str:
    lines = []
    for row in rows:
        for wanted in WANTED:
            count = replicas_for(wanted, row["per_second"])
            lines.append(
                [
                    f"{row['request']}, {wanted:,} a second",
                    f"{wanted:,} / ({USED} × {_number(row['per_second'])}) = {count:,}",
                    f"{count * row['cores']:,}",
                    f"{count * memory / 1e9:,.0f}",
                    f"{wanted * proxy[row['request']]['proxy_cpu_seconds']:.2f}",
                    f"{wanted * 8 * row['bytes'] / 1e9:.3f}",
                    _number(1e6 / 3600 * row["cores"] * price / (USED * row["per_second"])),
                ]
            )
    heads = [
        "",
        "replicas",
        "cores",
        "memory, GB",
        "balancer, cores",
        "Gbit/s",
        "cost of a million",
    ]
    return _table(heads, lines)


def _first(row: Row, proxy: Mapping[str, Row]) -> str:
    """The part that reaches its limit first, given enough replicas."""
    ends = ceilings(row, proxy[row["request"]])
    load = row["per_second"] / ends["API process"]
    shared = sorted((ends[name], name) for name in ("balancer", "network"))
    (first, name), (second, other) = shared
    rate = row["per_second"]
    return (
        f"- **{row['request']}**: the predictors of a replica of {row['cores']} cores reach their "
        f"limit first, at {_number(rate)} a\n  second; its API process is then {load:.0%} busy. "
        f"With {_number(first / rate)} replicas, {WORDS[name]} reaches its\n  limit, at "
        f"{_number(first)} a second; the next limit is that of {WORDS[other]}, "
        f"at {_number(second)}.\n"
    )


def _number(value: float) -> str:
    """Three digits, or all digits of an integer."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rule = ["---", *("---:" for _ in heads[1:])]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (heads, rule, *lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", type=Path, metavar="PAGE", help="measure, and write page and JSON")
    what.add_argument("--render", type=Path, metavar="PAGE", help="write it from its JSON")
    parser.add_argument("--haproxy", type=Path, default=shutil.which("haproxy"))
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a phase")
    parser.add_argument("--price", type=float, default=0.04, help="of a core for an hour")
    given = parser.parse_args()
    out = given.write or given.render
    figures = out.with_suffix(".json")
    if given.write:
        if given.haproxy is None:
            parser.error("haproxy is not on the path: apt-get install haproxy, or --haproxy PATH")
        asked = requests()
        report: dict[str, Any] = {
            "machine": describe_machine(cores=available_cores()),
            "start": start(),
            "replicas": list(replica_rows(asked, given.seconds)),
        } | proxy_rows(asked, given.seconds, given.haproxy)
        if figures.exists():
            report["others"] = other_machines(json.loads(figures.read_text("utf-8")), report)
        figures.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", "utf-8")
    out.write_text(page(json.loads(figures.read_text("utf-8")), price=given.price), "utf-8")


if __name__ == "__main__":
    main()
