"""Measure what a text costs each process, and simulate servers with more cores than this machine.

    .venv/bin/python loadtest/many_cores.py --write docs/many-cores.md

Measures single texts with one and two predictors and 1 to 32 clients, for two minutes, on two
cores. The costs come from the points of FITTED; the simulation has to reproduce the other points
before the page may use it. The figures go to a JSON file beside the page; `--render` writes the
page from that file.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import tomlkit
from cases import TEXT, text_request
from harness import Server, cpu_seconds, request, running_server, send
from load_clients import HttpWay
from pages import filled, page_parser, write_page
from replicas import balancer
from simulated_server import API_PROCESS, MAX_ROWS, Costs, PartCosts, Simulated, simulate
from with_without import INT8_GROUP, int8_version

from paddlepool.contracts.resources import available_cores
from paddlepool.observability.build_info import describe_machine

CLIENTS = (1, 2, 4, 8, 16, 32)
PREDICTORS = (1, 2)
FITTED = ((1, 1), (2, 32))
"""Predictors and clients of the two points that give the costs: runs of one row, and full runs."""

CORES = (2, 4, 8, 16, 32, 64)
SPLITS = (2, 4, 8)
"""Cores of a replica, where several replicas share a machine."""
QUIET, ATTEMPTS = 0.04, 4
CLIENTS_PER_CORE, MOST_CLIENTS = 16, 256
"""Two full runs of each predictor, so that no predictor waits for clients. More than the most would
only wait longer for the API process."""

Point = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Spent:
    """Processor seconds of each part and of the whole machine, and the number of runs."""

    api: float
    predictors: float
    client: float
    balancer: float
    machine: float
    runs: float

    @classmethod
    def now(cls, server: Server, proxy: Server | None) -> "Spent":
        api = cpu_seconds(server.pid, below=False)
        metrics = send(server.port, request("GET", "/metrics")).body.decode().splitlines()
        [runs] = [line for line in metrics if line.startswith("paddlepool_batch_rows_count")]
        return cls(
            api=api,
            predictors=cpu_seconds(server.pid) - api,
            client=time.process_time(),
            balancer=cpu_seconds(proxy.pid) if proxy else 0.0,
            machine=machine_seconds(),
            runs=float(runs.split()[-1]),
        )


def machine_seconds() -> float:
    """Processor seconds that everything on this machine has used, or a hypervisor has withheld."""
    line = Path("/proc/stat").read_text("ascii").partition("\n")[0]
    user, nice, system, _idle, _wait, interrupt, soft, steal = map(int, line.split()[1:9])
    return (user + nice + system + interrupt + soft + steal) / os.sysconf("SC_CLK_TCK")


def quietest(measure: Callable[[], Point]) -> Point:
    """Measure until others use less than QUIET of the processors; return the quietest point."""
    points: list[Point] = []
    while not points or (points[-1]["others"] > QUIET and len(points) < ATTEMPTS):
        points.append(measure())
    return min(points, key=lambda point: point["others"])


def point(server: Server, *, clients: int, seconds: float, proxy: Server | None = None) -> Point:
    """Texts a second, processor seconds of a text in each part, and the rows of a run."""
    way = HttpWay(proxy or server, text_request(TEXT))
    way.rate(clients=clients, seconds=seconds / 4)
    before, began = asdict(Spent.now(server, proxy)), time.perf_counter()
    rate = way.rate(clients=clients, seconds=seconds)
    elapsed = time.perf_counter() - began
    after = asdict(Spent.now(server, proxy))
    each = {part: (after[part] - before[part]) / (rate * elapsed) for part in before}
    machine, rows = each.pop("machine"), 1 / each.pop("runs")
    others = (machine - sum(each.values())) * rate / available_cores()
    return {"clients": clients, "per_second": rate, "rows": rows, "others": others, **each}


def measure(_: object, *, seconds: float) -> dict[str, Any]:
    """Measure every point, and what a balancer adds."""
    points: list[Point] = []
    with tempfile.TemporaryDirectory() as directory:
        version = int8_version(Path(directory))
        file = version.parent / "config.toml"
        config = tomlkit.parse(file.read_text("utf-8")).unwrap()
        [group] = [group for group in config["instance_group"] if group["name"] == INT8_GROUP]
        for count in PREDICTORS:
            group["count"] = count
            file.write_text(tomlkit.dumps(config), "utf-8")
            with running_server(Path(directory)) as server:
                for clients in CLIENTS:
                    row = quietest(partial(point, server, clients=clients, seconds=seconds))
                    points.append({"processes": count, **row})
                with balancer([server.port], Path(directory)) as proxy:
                    way = partial(point, clients=CLIENTS[-1], seconds=seconds, proxy=proxy)
                    proxied = quietest(partial(way, server))
    return {
        "machine": describe_machine(cores=available_cores()),
        "cores": int(available_cores()),
        "points": points,
        "balancer": proxied["balancer"],
    }


def costs_of(points: Sequence[Point], balancer_seconds: float, *, cores: int) -> Costs:
    """The costs of each part, from the two points of FITTED.

    A part spends `text + run / rows` seconds on a text. What one client waits beyond these seconds
    is divided among the four messages of a text.
    """
    small, full = (
        next(p for p in points if (p["processes"], p["clients"]) == fitted) for fitted in FITTED
    )

    def part(name: str) -> PartCosts:
        run = (small[name] - full[name]) / (1 / small["rows"] - 1 / full["rows"])
        return PartCosts(text=full[name] - run / full["rows"], run=run)

    parts = ("api", "predictors", "client")
    waited = 1 / small["per_second"] - sum(small[name] for name in parts)
    worked = full["per_second"] * sum(full[name] for name in parts)
    return Costs(
        api=part("api"),
        predictor=part("predictors"),
        client=part("client"),
        balancer=balancer_seconds,
        message=max(0.0, waited / 4),
        used=min(1.0, worked / cores / (1 - full["others"])),
    )


def checks(report: Mapping[str, Any], costs: Costs) -> list[dict[str, Any]]:
    """Each measured point beside the simulated one."""
    rows = []
    for measured in report["points"]:
        simulated = simulate(
            costs,
            cores=report["cores"],
            predictors=measured["processes"],
            clients=measured["clients"],
            clients_share_cores=True,
            others=measured["others"],
        )
        rows.append(
            {
                **measured,
                "simulated": simulated.per_second,
                "simulated_rows": simulated.rows,
                "error": simulated.per_second / measured["per_second"] - 1,
                "fitted": (measured["processes"], measured["clients"]) in FITTED,
            }
        )
    return rows


def projections(costs: Costs) -> list[dict[str, Any]]:
    """For each number of cores: one API process, and the best split into replicas."""

    def on(cores: int, *, balanced: bool) -> Simulated:
        clients = min(CLIENTS_PER_CORE * cores, MOST_CLIENTS)
        return simulate(costs, cores=cores, predictors=cores, clients=clients, balanced=balanced)

    replicas = {cores: on(cores, balanced=True) for cores in SPLITS}
    rows = []
    for cores in CORES:
        fitting = {split: cores // split for split in SPLITS if cores // split > 1}
        best = max(
            fitting, key=lambda split: fitting[split] * replicas[split].per_second, default=0
        )
        row: dict[str, Any] = {"cores": cores, "alone": on(cores, balanced=False)}
        if best:
            row |= {"replicas": fitting[best], "split": best, "each": replicas[best]}
        rows.append(row)
    return rows


def page(report: Mapping[str, Any]) -> str:
    """Build the page from measured points; the simulation is run again."""
    costs = costs_of(report["points"], report["balancer"], cores=report["cores"])
    checked = checks(report, costs)
    free = [abs(row["error"]) for row in checked if not row["fitted"]]
    rows = projections(costs)
    limited = [row["alone"].per_second for row in rows if row["alone"].limit == API_PROCESS]
    ceiling = max(limited)
    parts = (("API process", costs.api), ("predictor", costs.predictor), ("client", costs.client))
    return filled(
        "many-cores",
        machine=report["machine"],
        measured=report["cores"],
        most=MAX_ROWS,
        costs=[
            *(
                {"part": name, "text": 1e6 * p.text, "run": f"{1e6 * p.run:.0f}"}
                for name, p in parts
            ),
            {"part": "balancer", "text": 1e6 * costs.balancer, "run": ""},
        ],
        checks=[{**row, "mark": " (*)" if row["fitted"] else ""} for row in checked],
        mean_error=statistics.mean(free),
        worst_error=max(free),
        clients_per_core=CLIENTS_PER_CORE,
        most_clients=MOST_CLIENTS,
        splits=", ".join(map(str, SPLITS)),
        rows=[row | _replicas(row) for row in rows],
        ceiling=round(ceiling, -2),
        enough=next(r["cores"] for r in rows if r["alone"].per_second > 0.95 * ceiling),
        used=costs.used,
    )


def _replicas(row: Mapping[str, Any]) -> dict[str, str]:
    """The cells of a row about replicas; empty if there is only one."""
    if "each" not in row:
        return dict.fromkeys(("split", "all", "busy", "limit"), "")
    return {
        "split": f"{row['replicas']} × {row['split']} cores",
        "all": f"{row['replicas'] * row['each'].per_second:,.0f}",
        "busy": f"{row['each'].api:.0%}",
        "limit": row["each"].limit,
    }


def main() -> None:
    parser = page_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a phase")
    args = parser.parse_args()
    write_page(args, measure=partial(measure, seconds=args.seconds), page=page)


if __name__ == "__main__":
    main()
