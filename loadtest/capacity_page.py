"""docs/capacity.md: measured figures as a page, with the arithmetic from them to replicas."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]

FLOAT32, CHOSEN = "float32", "chosen"
WANTED = (100, 1_000, 10_000)
PLANNED = ("mask of 1 MP", "1 text", "32 texts")
USED = 0.7
"""Of what a replica can answer: the rest is for bursts, and for a replica that is replaced."""
LOADS = (0.5, 0.7, 0.9)
LINK_BITS = 10e9
WORDS = {"balancer": "one core of the balancer", "network": "its link"}

INTRODUCTION = """\
# Capacity

`.venv/bin/python loadtest/capacity.py --write docs/capacity.md` measured and wrote this page, on

> {machine}

with the clients on the same cores. Read how figures compare and how the sums go; the seconds belong
to the machine, so run it on yours. A replica is one container: one API process with its predictors.

## What one replica answers

Requests a second with a few clients that always wait for an answer: two for each core, four for
texts. A mask is `/segment?output=mask` of a JPEG, texts are of 41 characters. `float32` is oneDNN's
group; `chosen` is what the server's own measurements make the default, in brackets.
"""

LATENCY = """\
## How long a request takes

The 95th and the 99th percentile in milliseconds, of requests that arrive as those of many users
do, at so much of the rate above, with {cores} cores and the chosen groups. One that is refused
counts as 30 s.
"""

START = """\
## How long a start takes

Ready after {seconds:.1f} s, with these processor seconds: {api:.1f} of the API process, which
imports first, then {children} of its children, which open their
models, check them and run each shape of `warmup`.
"""

COSTS = """\
## What one request costs

With {cores} cores and the chosen groups. Processor time is that of all processes of the replica,
and of its API process alone; the balancer's is HAProxy's, measured before one replica. Bytes are
those of the request and its reply.
"""

CEILINGS = """\
## Where each part ends

- **API process**: it computes on one core at a time, so it ends at 1 / its time for a request. More
  cores for one replica than the number in brackets would find it full.
- **Balancer**: 1 / its time for a request, for each core that it has.
- **Network**: {link:g} Gbit/s / (8 × bytes of a request), of the balancer's link, which sees every
  request.
"""

REPLICAS = """\
## How many replicas

Replicas = requests a second / ({used} × what one answers), rounded up, of {cores} cores each and
with the chosen groups; {spare:.0%} are left for bursts and for a replica that is being replaced.
Memory is replicas × {memory:.2f} GB. A million requests cost
1,000,000 / 3,600 × {cores} cores × {price:g} / ({used} × what one answers), where a core costs
{price:g} an hour (`--price`).
"""


def page(report: Mapping[str, Any], *, price: float = 0.04) -> str:
    """The page of a report as capacity.py writes it; sums are of figures as they are printed."""
    rows: Sequence[Row] = [as_shown(row) for row in report["replicas"]]
    cores = max(row["cores"] for row in rows)
    costs = [row for row in rows if (row["cores"], row["precision"]) == (cores, CHOSEN)]
    proxy = {row["request"]: as_shown(row) for row in report["proxy"]}
    memory = max(row["memory"] for row in costs)
    planned = [row for row in costs if row["request"] in PLANNED]
    parts = [
        INTRODUCTION.format(machine=report["machine"]),
        _rates(rows),
        *_latency(costs),
        *_start(report),
        COSTS.format(cores=cores),
        _costs(costs, proxy),
        CEILINGS.format(link=LINK_BITS / 1e9),
        _ceilings(costs, proxy),
        _api_check(as_shown(report["api"][0])),
        "`loadtest/with_without.py haproxy` measures what the way through the balancer adds.\n",
        REPLICAS.format(used=USED, cores=cores, spare=1 - USED, memory=memory / 1e9, price=price),
        _replicas(planned, proxy, memory, price),
        "## What breaks first\n",
        "".join(_first(row, proxy) for row in planned)
        + f"- `deploy/haproxy/haproxy.cfg` takes {report['balanced']} replicas; beyond that, raise "
        "the number in its\n  `server-template`.\n",
    ]
    return "\n".join(parts)


def as_shown(row: Row) -> Row:
    """The row with the digits that the page prints."""
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
    """Requests a second at which each part ends: one API process, one core of the balancer, the
    link."""
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
        ["", "processor, ms", "of it the API process", "balancer, ms", "kB"],
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
        api = f"{_number(ends['API process'])} (a replica of {largest:.0f} cores)"
        lines.append([row["request"], api, _number(ends["balancer"]), _number(ends["network"])])
    return _table(["a second", "API process", "balancer, a core", "network"], lines)


def _api_check(probe: Row) -> str:
    seconds = probe["api_cpu_seconds"]
    return (
        f"How far that sum holds: `{probe['request']}`, which computes nothing, takes "
        f"{1e3 * seconds:.2f} ms of the API\nprocess, which makes {_number(1 / seconds)} a second; "
        f"{_number(probe['per_second'])} were answered, beside their clients.\n"
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
    """Which part is full first when there are replicas enough."""
    ends = ceilings(row, proxy[row["request"]])
    load = row["per_second"] / ends["API process"]
    shared = sorted((ends[name], name) for name in ("balancer", "network"))
    (first, name), (second, other) = shared
    rate = row["per_second"]
    return (
        f"- **{row['request']}**: the predictors, at {_number(rate)} a second for a replica of "
        f"{row['cores']} cores, whose API process\n  is {load:.0%} busy then. With replicas enough "
        f"{WORDS[name]} is next, at {_number(first)} a second,\n  which are "
        f"{_number(first / rate)} replicas; then {WORDS[other]}, at {_number(second)}.\n"
    )


def _number(value: float) -> str:
    """Three digits, or all of a whole number."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rule = ["---", *("---:" for _ in heads[1:])]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (heads, rule, *lines))
