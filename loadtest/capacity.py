"""How many requests a second a replica answers, and how many replicas answer so many.

    .venv/bin/python loadtest/capacity.py --write docs/capacity.md [--haproxy PATH]

Measures with one core and with two, in float32 and with the groups that the server chooses for
itself, and what a request costs the API process and the balancer in processor time. The figures go
to a JSON file beside the page; `--render docs/capacity.md` writes the page from them again. On a
quiet machine of two cores or more it takes eleven minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import os
import random
import re
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
from balanced import CONFIGURATION, balancer
from capacity_page import CHOSEN, FLOAT32, LOADS, page
from cases import TEXT, mask_request, picture, text_request
from closed_loop import HttpWay, checked
from harness import ROOT, Connection, Server, cpu_seconds, descendants, request, running_server
from open_loop import arrivals
from PIL import Image
from tqdm import tqdm

from app.observability.build_info import describe_machine
from app.resources import available_cores

MEGAPIXELS = (0.3, 1.0, 12.0)
CORES = (1, 2)
CHOOSING_SECONDS = 600.0
"""For the server to find its own default groups. Choices are kept for the next run, which need not
wait."""
KEPT = ROOT / "runs"
PATIENT = {"PADDLEPOOL_TIMEOUT_DEFAULT_MS": "30000"}
SETTINGS = {
    FLOAT32: PATIENT | {"PADDLEPOOL_PROVE_GROUPS": "off"},
    CHOSEN: PATIENT | {"PADDLEPOOL_PROVE_GROUPS": "started"},
}
REFUSED_SECONDS = 30.0
PROBE = "GET /v2/health/live"


def requests() -> dict[str, bytes]:
    """A mask of each size, one text and 32, by name."""
    masks = {f"mask of {size:g} MP": mask_request(sized(size)) for size in MEGAPIXELS}
    return masks | {"1 text": text_request(TEXT), "32 texts": text_request([TEXT] * 32)}


def sized(megapixels: float) -> bytes:
    """The JPEG of all benchmarks, in another size."""
    image = Image.open(io.BytesIO(picture()))
    factor = math.sqrt(megapixels * 1e6 / (image.width * image.height))
    size = (round(image.width * factor), round(image.height * factor))
    buffer = io.BytesIO()
    image.resize(size, Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


@contextlib.contextmanager
def only_cores(count: int) -> Iterator[None]:
    """What is started inside has so many of this process's cores, which itself keeps all."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(sorted(cores)[:count]))
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


@contextlib.contextmanager
def replica(cores: int, precision: str) -> Iterator[Server]:
    """A server on so many cores; where it may choose its groups, it has."""
    with contextlib.ExitStack() as stack:
        with only_cores(cores):
            kept = {"PADDLEPOOL_STATE_FILE": str(KEPT / f"capacity-{cores}.json")}
            settings = SETTINGS[precision] | (kept if precision == CHOSEN else {})
            server = stack.enter_context(running_server(environment=settings))
        if precision == CHOSEN:
            give_up = time.perf_counter() + CHOOSING_SECONDS
            while not chosen(server):
                if time.perf_counter() > give_up:
                    raise RuntimeError(f"nothing is chosen after {CHOOSING_SECONDS:.0f} s")
                time.sleep(1.0)
        yield server


def chosen(server: Server) -> bool:
    """Whether the groups of both tasks are measured."""
    with contextlib.closing(Connection(server.port)) as connection:
        models = orjson.loads(connection.send(request("GET", "/info")).body)["models"]
    choices = [model["choice"] for model in models if model.get("task")]
    return all(choice["by"] != "start" for choice in choices)


def measured(
    server: Server, name: str, asked: bytes, *, clients: int, seconds: float
) -> dict[str, Any]:
    """Requests a second, and the processor seconds and bytes of one; warm."""
    with contextlib.closing(Connection(server.port)) as connection:
        reply = checked(connection.send(asked))
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
    """The 95th and the 99th percentile of the seconds until a reply, at each of LOADS."""
    found = []
    for load in LOADS:
        draw = random.Random(1)
        ended = arrivals(server.port, asked, rate=load * rate, seconds=seconds, draw=draw)
        seconds_of = [each.seconds if each.status == 200 else REFUSED_SECONDS for each in ended]
        taken = statistics.quantiles(seconds_of, n=100, method="inclusive")
        found.append([taken[94], taken[98]])
    return found


def start() -> dict[str, Any]:
    """Seconds until a server with every core is ready, and the processor seconds of each part."""
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
    """What a balancer costs before one replica, and a request that costs the replica next to
    nothing: as fast as the API process answers at all."""
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
    """How many the committed configuration of the balancer takes."""
    found = re.search(r"server-template \w+ (\d+)", CONFIGURATION.read_text("utf-8"))
    if found is None:
        raise RuntimeError(f"no server-template in {CONFIGURATION.name}")
    return int(found[1])


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
        figures.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", "utf-8")
    out.write_text(page(json.loads(figures.read_text("utf-8")), price=given.price), "utf-8")


if __name__ == "__main__":
    main()
