"""Measure the requests per second of a replica, and the number of replicas for a load.

    .venv/bin/python loadtest/capacity.py --write docs/capacity.md

Measures with one core and with two, in float32 and with the groups that the server chooses, and
also the processor time of a request in the API process and in the balancer. The figures go to a
JSON file beside the page; `--render docs/capacity.md` writes the page from that file. It takes
eleven minutes on a quiet machine with at least two cores.
"""

import contextlib
import math
import os
import random
import re
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from cases import TEXT, mask_request, text_request, wait_chosen
from harness import (
    Server,
    cpu_seconds,
    descendants,
    memory_of,
    request,
    running_server,
)
from inputs import draw_picture
from load_clients import HttpWay, arrivals
from pages import filled, markdown_table, page_parser, write_page
from replicas import CONFIGURATION, balancer
from tqdm import tqdm

from paddlepool.contracts.resources import available_cores
from paddlepool.observability.build_info import describe_machine

Row = Mapping[str, Any]

FLOAT32, CHOSEN = "float32", "chosen"
WANTED = (100, 1_000, 10_000)
PLANNED = ("mask of 1 MP", "1 text", "32 texts")
USED = 0.7
"""Planned share of a replica's capacity: the rest is for bursts and for replacing a replica."""
LOADS = (0.5, 0.7, 0.9)
LINK_BITS = 10e9
MEGAPIXELS = (0.3, 1.0, 12.0)
CORES = (1, 2)
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
def replica(cores: int, precision: str) -> Iterator[Server]:
    """Run a server on this many cores; if it may choose its groups, wait until it has."""
    all_cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(all_cores)[:cores])  # for the server, which inherits it
    with running_server(environment=SETTINGS[precision]) as server:
        os.sched_setaffinity(0, all_cores)
        if precision == CHOSEN:
            wait_chosen(server)
        yield server


def measured(
    server: Server,
    name: str,
    request: bytes,
    *,
    clients: int,
    seconds: float,
    proxy: Server | None = None,
) -> dict[str, Any]:
    """Requests per second, and the processor seconds and bytes of one request, after a warm-up."""

    def used() -> tuple[float, float, float]:
        api = cpu_seconds(server.pid, below=False)
        return cpu_seconds(server.pid), api, cpu_seconds(proxy.pid) if proxy else 0.0

    way = HttpWay(proxy or server, request)
    reply = way.one()
    way.rate(clients=clients, seconds=seconds / 4)
    before, began = used(), time.perf_counter()
    rate = way.rate(clients=clients, seconds=seconds)
    done = rate * (time.perf_counter() - began)
    both, api, balancing = ((now - then) / done for now, then in zip(used(), before, strict=True))
    return {
        "request": name,
        "group": reply.headers.get("x-predictor", ""),
        "per_second": rate,
        "cpu_seconds": both,
        "api_cpu_seconds": api,
        "proxy_cpu_seconds": balancing,
        "bytes": len(request) + len(reply.body),
    }


def latency(port: int, request: bytes, *, rate: float, seconds: float) -> list[list[float]]:
    """The 95th and 99th percentile of the latency at each of LOADS."""
    rows = []
    for load in LOADS:
        draw = random.Random(1)
        ended = arrivals(port, request, rate=load * rate, seconds=seconds, draw=draw)
        seconds_of = [reply.seconds if reply.status == 200 else REFUSED_SECONDS for reply in ended]
        percentiles = statistics.quantiles(seconds_of, n=100, method="inclusive")
        rows.append([percentiles[94], percentiles[98]])
    return rows


def start() -> dict[str, Any]:
    """Seconds until a server with all cores is ready, and the processor seconds of each part."""
    began = time.perf_counter()
    with running_server(environment=SETTINGS[FLOAT32]) as server:
        seconds = time.perf_counter() - began
        children = [cpu_seconds(pid, below=False) for pid in descendants(server.pid)]
        api = cpu_seconds(server.pid, below=False)
    return {"seconds": seconds, "api_cpu_seconds": api, "child_cpu_seconds": children}


def replica_rows(payloads: Mapping[str, bytes], seconds: float) -> Iterator[dict[str, Any]]:
    counts = [count for count in CORES if count <= int(available_cores())]
    for cores in counts:
        for precision in SETTINGS:
            with replica(cores, precision) as server:
                bar = tqdm(payloads.items(), desc=f"{cores} cores, {precision}", disable=None)
                for name, sent in bar:
                    clients = cores * (4 if "text" in name else 2)
                    figures = measured(server, name, sent, clients=clients, seconds=seconds)
                    memory = memory_of(server.pid)
                    row = {"cores": cores, "precision": precision, "memory": memory} | figures
                    if precision == CHOSEN and cores == counts[-1]:
                        rate = figures["per_second"]
                        row["latency"] = latency(server.port, sent, rate=rate, seconds=4 * seconds)
                    yield row


def proxy_rows(payloads: Mapping[str, bytes], seconds: float) -> dict[str, Any]:
    """The balancer's cost per request with one replica and a request that costs almost nothing."""
    probe = request("GET", "/v2/health/live")
    with (
        tempfile.TemporaryDirectory() as directory,
        running_server(environment=SETTINGS[FLOAT32]) as server,
        balancer([server.port], Path(directory), environment=PATIENT) as proxy,
    ):
        return {
            "api": [measured(server, PROBE, probe, clients=4, seconds=seconds)],
            "proxy": [
                measured(server, name, sent, clients=4, seconds=seconds, proxy=proxy)
                for name, sent in {PROBE: probe, **payloads}.items()
            ],
            "balanced": balanced_replicas(),
        }


def balanced_replicas() -> int:
    """Maximum number of replicas in the committed configuration of the balancer."""
    [count] = re.findall(r"server-template \w+ (\d+)", CONFIGURATION.read_text("utf-8"))
    return int(count)


def page(report: Mapping[str, Any], *, price: float = 0.04) -> str:
    """Build the page from a report; sums use the figures as printed."""
    rows = [as_shown(row) for row in report["replicas"]]
    balancing = {row["request"]: as_shown(row)["proxy_cpu_seconds"] for row in report["proxy"]}
    cores = max(row["cores"] for row in rows)
    costs = [
        costs_of({**row, "proxy_cpu_seconds": balancing[row["request"]]})
        for row in rows
        if (row["cores"], row["precision"]) == (cores, CHOSEN)
    ]
    memory = max(row["memory"] for row in costs)
    planned = [row for row in costs if row["request"] in PLANNED]
    probe = as_shown(report["api"][0])
    return filled(
        "capacity",
        machine=report["machine"],
        cores=cores,
        rates="\n\n".join([_rates(rows), *_others(report.get("others", {}))]),
        loads=LOADS,
        start=report["start"],
        children=", ".join(f"{seconds:.1f}" for seconds in report["start"]["child_cpu_seconds"]),
        costs=costs,
        link=LINK_BITS / 1e9,
        probe=probe["request"],
        probe_milliseconds=1e3 * probe["api_cpu_seconds"],
        probe_ceiling=_number(1 / probe["api_cpu_seconds"]),
        probe_rate=_number(probe["per_second"]),
        used=USED,
        spare=1 - USED,
        memory=memory / 1e9,
        price=price,
        planned=planned,
        replicas=[replicas_of(row, wanted, memory, price) for row in planned for wanted in WANTED],
        balanced=report["balanced"],
    )


def other_machines(before: Mapping[str, Any], now: Row) -> dict[str, Sequence[Row]]:
    """Return the rows of an earlier run's file that come from other processors."""
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


def costs_of(row: Row) -> Row:
    """Add what a request costs, and the requests per second at which each part ends."""
    rate, api = row["per_second"], 1 / row["api_cpu_seconds"]
    balancer, network = 1 / row["proxy_cpu_seconds"], LINK_BITS / 8 / row["bytes"]
    ends = ((balancer, "one core of the balancer"), (network, "the balancer's link"))
    (first, first_part), (second, second_part) = sorted(ends)
    return {
        **row,
        "milliseconds": [f"{1e3 * p95:.0f}, {1e3 * p99:.0f}" for p95, p99 in row["latency"]],
        "cpu_milliseconds": 1e3 * row["cpu_seconds"],
        "api_milliseconds": 1e3 * row["api_cpu_seconds"],
        "proxy_milliseconds": 1e3 * row["proxy_cpu_seconds"],
        "kilobytes": _number(row["bytes"] / 1e3),
        "rate": _number(rate),
        "api": _number(api),
        "most_cores": api / (rate / row["cores"]),
        "balancer": _number(balancer),
        "network": _number(network),
        "busy": rate / api,
        "replicas": f"{first / rate:.0f}",
        "first": _number(first),
        "first_part": first_part,
        "second": _number(second),
        "second_part": second_part,
    }


def replicas_of(row: Row, wanted: int, memory: float, price: float) -> Row:
    """The number of replicas for a number of requests per second, and what they need."""
    count = math.ceil(wanted / (USED * row["per_second"]))
    return {
        **row,
        "wanted": wanted,
        "used": USED,
        "count": count,
        "all_cores": count * row["cores"],
        "gigabytes": count * memory / 1e9,
        "balancer_cores": wanted * row["proxy_cpu_seconds"],
        "gigabits": wanted * 8 * row["bytes"] / 1e9,
        "cost": _number(1e6 / 3600 * row["cores"] * price / (USED * row["per_second"])),
    }


def _rates(rows: Sequence[Row]) -> str:
    kinds = list(dict.fromkeys((row["cores"], row["precision"]) for row in rows))
    by_kind = {(row["request"], row["cores"], row["precision"]): row for row in rows}
    lines = [
        [name, *(_rate(by_kind[name, *kind]) for kind in kinds)]
        for name in dict.fromkeys(row["request"] for row in rows)
    ]
    memory = {(row["cores"], row["precision"]): row["memory"] for row in rows}
    lines.append(["memory, GB", *(f"{memory[kind] / 1e9:.2f}" for kind in kinds)])
    heads = (f"{n} core{'s' if n > 1 else ''}, {precision}" for n, precision in kinds)
    return markdown_table(["", *heads], lines, rule="---:")


def _rate(row: Row) -> str:
    group = f" ({row['group']})" if row["precision"] == CHOSEN else ""
    return f"{_number(row['per_second'])}{group}"


def _others(machines: Mapping[str, Sequence[Row]]) -> Iterator[str]:
    """The table of the figures of other processors, from their last run."""
    for machine, rows in machines.items():
        yield f"The same measured on\n\n> {machine}\n\n{_rates([as_shown(row) for row in rows])}"


def _number(value: float) -> str:
    """Three digits, or all digits of an integer."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def main() -> None:
    parser = page_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a phase")
    parser.add_argument("--price", type=float, default=0.04, help="of a core for an hour")
    args = parser.parse_args()

    def report(before: dict[str, Any]) -> dict[str, Any]:
        payloads = requests()
        figures = proxy_rows(payloads, args.seconds) | {
            "machine": describe_machine(cores=available_cores()),
            "start": start(),
            "replicas": list(replica_rows(payloads, args.seconds)),
        }
        return figures | {"others": other_machines(before, figures) if before else {}}

    write_page(args, measure=report, page=partial(page, price=args.price))


if __name__ == "__main__":
    main()
