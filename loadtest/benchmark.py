"""Measure this server beside rembg, LitServe, BentoML, MLServer and Ray Serve.

    .venv/bin/python loadtest/benchmark.py --write docs/benchmark.md [--rounds N] [--seconds S]
        [--repeats N]

Measures latency, throughput, memory and start-up, then ten times the load, a killed worker, hostile
pictures and a model change. Every server runs U²-Netp on the same cores. The figures of this
processor go to a JSON file beside the page, which keeps those of other processors. `--render
docs/benchmark.md` writes page and chart from that file.
"""

import argparse
import contextlib
import io
import json
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from cases import mask_request, picture, wait_chosen
from harness import (
    HOST,
    REQUEST_ERRORS,
    ROOT,
    Connection,
    Server,
    compile_package,
    cpu_seconds,
    descendants,
    free_port,
    meanwhile,
    memory_of,
    repeated,
    request,
    send,
    status_of,
    wait_until,
)
from load_clients import HttpWay, arrivals, checked
from pages import Column, filled, page_parser, ranked_table, write_page
from peer_servers import PEER_SERVERS, START_SECONDS, PeerServer, running
from peers import as_onnx, measure, pictures, short_name, table
from PIL import Image
from tqdm import tqdm

from paddlepool.cli.shared import read_version
from paddlepool.evidence.comparison.plot import DEFAULT, OTHER, open_figure, save_figure
from paddlepool.models.repository.layout import ModelRepository
from paddlepool.observability.build_info import describe_machine

MODEL = "u2netp"
FACTOR = 10.0
FLOOD_SECONDS = 10.0
PATIENCE_SECONDS = 20.0
"""Timeout of a client's request."""
KILL_AFTER_SECONDS = 5.0
LATE_SECONDS = 10.0
AFTERWARDS_SECONDS = 20.0
BEFORE_SECONDS = 8.0
"""How long clients send requests before the model is changed."""
BOMB_SIDE = 20_000

Row = dict[str, Any]


def _files(home: Path, port: int, _workers: int, _model: Path) -> Mapping[str, str]:
    """Copy this server's repository with one model, and return its settings."""
    compile_package()
    shutil.rmtree(home / "repository", ignore_errors=True)  # with versions that were published
    shutil.copytree(ROOT / "model_repo" / MODEL, home / "repository" / MODEL, dirs_exist_ok=True)
    return {
        "PADDLEPOOL_HOST": HOST,
        "PADDLEPOOL_PORT": str(port),
        "PADDLEPOOL_MODEL_REPOSITORY": str(home / "repository"),
        "PADDLEPOOL_STATE_FILE": str(home / "kept.json"),
        "PADDLEPOOL_REPOSITORY_POLL_SECONDS": "1",
        "PADDLEPOOL_DRAIN_DELAY_SECONDS": "0",
    }


def _publish(server: Server) -> None:
    """Publish the model's next version, and wait until it answers."""
    versions = server.directory / "repository" / MODEL
    last = max(int(path.name) for path in versions.glob("[0-9]*"))
    shutil.copytree(versions / str(last), versions / ".next")
    (versions / ".next").rename(versions / str(last + 1))
    ready = request("GET", f"/v2/models/{MODEL}/versions/{last + 1}/ready")
    wait_until(
        lambda: status_of(server.port, ready, timeout=PATIENCE_SECONDS) == 200,
        f"{MODEL}@{last + 1} did not become ready",
        timeout=START_SECONDS,
    )
    checked(send(server.port, mask_request(picture())))


PADDLEPOOL = PeerServer(
    name="Paddlepool",
    package="paddlepool",
    command=lambda *_: (sys.executable, "-m", "paddlepool.cli", "serve"),
    ready="/v2/health/ready",
    build=mask_request,
    prepare=_files,
    warm_up=wait_chosen,
    change=_publish,
    changed_by="a directory",
    nice=0,
)


Open = Callable[..., AbstractContextManager[Server]]
"""Context that runs the server under test on `port`."""


def flood(port: int, request: bytes, *, rate: float) -> Row:
    """Send `rate` requests per second, then one more; return the counts, p99 and seconds."""
    ended = arrivals(port, request, rate=rate, seconds=FLOOD_SECONDS, patience=PATIENCE_SECONDS)
    completed = [reply.seconds for reply in ended if reply.status == 200]
    refused = sum(reply.status in (429, 503) for reply in ended)
    time.sleep(1.0)
    return {
        "per_second": rate,
        "sent": len(ended),
        "answered": len(completed),
        "p99_seconds": float(np.quantile(completed, 0.99)) if completed else None,
        "refused": refused,
        "failed": len(ended) - len(completed) - refused,
        "next_seconds": seconds_to_success(port, request),
    }


def seconds_to_success(port: int, request: bytes) -> float | None:
    """Seconds until a request is answered with 200, retrying; None after 60 s."""
    began = time.perf_counter()
    while (waited := time.perf_counter() - began) < 60.0:
        if status_of(port, request, timeout=60.0 - waited) == 200:
            return time.perf_counter() - began
        time.sleep(0.05)
    return None


@contextlib.contextmanager
def watched(
    port: int, request: bytes, *, clients: int, replies: list[tuple[float, float]] | None = None
) -> Iterator[Row]:
    """Let clients send requests without pause while the block runs, and reconnect after a failure.

    The row is filled after the block. A client that tries again and again has failed once. The
    moment and the seconds of each success are added to `replies`.
    """
    began, row = time.perf_counter(), dict[str, Any]()
    times, failures = [began], [0] * clients

    def client(number: int, ending: threading.Event) -> None:
        failing = False
        with contextlib.closing(Connection(port, timeout=PATIENCE_SECONDS)) as connection:
            while not ending.is_set():
                status = 0
                with contextlib.suppress(*REQUEST_ERRORS):
                    reply = connection.send(request)
                    status = reply.status
                if status == 200:
                    times.append(time.perf_counter())
                    if replies is not None:
                        replies.append((times[-1], reply.seconds))
                elif not failing:
                    failures[number] += 1
                failing = status != 200
                if failing:
                    ending.wait(0.05)

    with meanwhile(*(partial(client, number) for number in range(clients))):
        yield row
        end = time.perf_counter()
    moments = sorted(at for at in times if at < end)
    row["answered"] = len(moments) - 1
    row["failed"] = sum(failures)
    row["longest_gap_seconds"] = max(b - a for a, b in pairwise([*moments, end]))
    row["per_second_afterwards"] = sum(at > end - LATE_SECONDS for at in moments) / LATE_SECONDS


def killed(server: Server, request: bytes, *, clients: int) -> Row:
    """Kill the busiest process under load."""
    with watched(server.port, request, clients=clients) as row:
        before = {pid: cpu_seconds(pid, below=False) for pid in descendants(server.pid)}
        time.sleep(KILL_AFTER_SECONDS)
        used = {pid: cpu_seconds(pid, below=False) - had for pid, had in before.items()}
        busiest = max(used, key=lambda pid: used[pid], default=server.pid)
        os.kill(busiest if used.get(busiest, 0.0) > 0.5 else server.pid, 9)
        time.sleep(AFTERWARDS_SECONDS)
    return row


def bomb() -> bytes:
    """A PNG of 400 million pixels in 50 kB."""
    file = io.BytesIO()
    Image.new("1", (BOMB_SIDE, BOMB_SIDE)).save(file, "PNG", optimize=True)
    return file.getvalue()


def hostile(server: Server, peer: PeerServer) -> Row:
    """Send invalid pictures while one client sends a valid one."""
    good = picture()
    bad = {"bomb": bomb(), "truncated": good[: len(good) // 2], "no picture": b"hello" * 100}
    calm, memory = memory_of(server.pid), [0]
    with watched(server.port, peer.build(good), clients=1) as row:
        time.sleep(2.0)
        with repeated(lambda: memory.append(memory_of(server.pid)), every=lambda: 0.02):
            replies = {
                name: status_of(server.port, peer.build(body), timeout=PATIENCE_SECONDS)
                for name, body in bad.items()
            }
        time.sleep(2.0)
    return row | {"status": replies, "memory_growth_bytes": max(memory) - calm}


def changed(peer: PeerServer, run: Open, request: bytes, starts: list[float]) -> Row:
    """Change the model under the load of two clients; restart the server if it has no reload."""
    with contextlib.ExitStack() as first, contextlib.ExitStack() as second:
        server = first.enter_context(started(peer, run, request, starts))
        port, replies = server.port, list[tuple[float, float]]()
        with watched(port, request, clients=2, replies=replies) as row:
            time.sleep(BEFORE_SECONDS)
            began = time.perf_counter()
            if peer.change is not None:
                peer.change(server)
            else:
                first.close()
                second.enter_context(run(port=port))
                checked(send(port, request))
            ended = time.perf_counter()
            time.sleep(3.0)
    p99 = [
        float(
            np.quantile([seconds for at, seconds in replies if low <= at < high] or [np.nan], 0.99)
        )
        for low, high in ((0.0, began), (began, ended))
    ]
    row |= {"p99_before_seconds": p99[0], "p99_seconds": p99[1]}
    return row | {"by": peer.changed_by, "seconds": ended - began}


@contextlib.contextmanager
def started(peer: PeerServer, run: Open, request: bytes, starts: list[float]) -> Iterator[Server]:
    """Start a server, append the seconds until its first mask to `starts`, and warm it up."""
    began = time.perf_counter()
    with run(port=free_port()) as server:
        checked(send(server.port, request))
        starts.append(time.perf_counter() - began)
        peer.warm_up(server)
        checked(send(server.port, request))
        yield server


def trouble(peer: PeerServer, run: Open, *, cores: int) -> Row:
    """Measure one server under faults, while no other server runs."""
    request = peer.build(picture())
    starts: list[float] = []
    row: Row = {"starts": starts}
    with started(peer, run, request, starts) as server:
        rate = HttpWay(server, request).rate(clients=2 * cores, seconds=5.0)
        row["hostile"] = hostile(server, peer)
        row["flood"] = flood(server.port, request, rate=FACTOR * rate)
    with started(peer, run, request, starts) as server:
        row["killed"] = killed(server, request, clients=2 * cores)
    row["changed"] = changed(peer, run, request, starts)
    return row


def run(args: argparse.Namespace) -> Row:
    """Measure all servers on this machine."""
    repository = ModelRepository(ROOT / "model_repo")
    cores, files = len(os.sched_getaffinity(0)), read_version(repository, MODEL, None)
    began = time.time()
    report: Row = {"machine": describe_machine(cores=cores), "cores": cores}
    with tempfile.TemporaryDirectory() as directory:
        scratch = Path(directory)
        with pictures(repository, scratch, threads=cores) as contests:
            report["masks"] = measure(
                "masks", contests["masks"], seconds=args.seconds, rounds=args.rounds
            )
        print(json.dumps(report["masks"]), file=sys.stderr)
        onnx = as_onnx(files, scratch)
        everyone = [PADDLEPOOL, *(peer for peer in PEER_SERVERS if peer.installed.exists())]
        report["trouble"] = {peer.name: [] for peer in everyone}
        for _ in range(args.repeats):
            for peer in tqdm(everyone, unit="server", disable=None):
                home = scratch / f"alone-{peer.name}"
                start = partial(running, peer, onnx, home, workers=cores)
                row = trouble(peer, start, cores=cores)
                print(peer.name, json.dumps(row), file=sys.stderr)
                report["trouble"][peer.name].append(row)
    for name in ("rounds", "seconds", "repeats"):
        report[name] = getattr(args, name)
    report["minutes"] = (time.time() - began) / 60
    return report


def page(report: Mapping[str, Row]) -> str:
    """Build the page with the figures of one or more processors."""
    return filled("benchmark", machines="\n".join(map(_machine, report.values())).rstrip())


def _machine(figures: Row) -> str:
    return filled(
        "benchmark_machine",
        found=figures,
        masks=table(figures["masks"]),
        repeats="once" if figures["repeats"] == 1 else f"{figures['repeats']} times, in turns",
        starts=3 * figures["repeats"],
        note=figures.get("note", ""),
        flood=FLOOD_SECONDS,
        patience=PATIENCE_SECONDS,
        clients=2 * figures["cores"],
        late=LATE_SECONDS,
        bomb=len(bomb()) / 1000,
        troubles="\n\n".join(ranked_table(columns, figures["trouble"]) for columns in TROUBLES),
    )


def _of(part: str, key: str) -> Callable[[list[Row]], list[float | None]]:
    """Return a function to one figure of each run."""
    return lambda runs: [run[part][key] for run in runs]


def _share(key: str) -> Callable[[list[Row]], list[float | None]]:
    """Return a function to a share of the requests of each run."""
    return lambda runs: [run["flood"][key] / run["flood"]["sent"] for run in runs]


def _statuses(runs: list[Row]) -> str:
    kinds = zip(*(run["hostile"]["status"].values() for run in runs), strict=True)
    return ", ".join("/".join(map(str, dict.fromkeys(kind))) for kind in kinds)


TROUBLES = (
    (
        Column("start", lambda runs: [seconds for run in runs for seconds in run["starts"]], "s"),
        Column("sent a second", _of("flood", "per_second"), best=None),
        Column("answered", _share("answered"), "%", 100, best=None),
        Column("refused", _share("refused"), "%", 100, best=None),
        Column("failed", _share("failed"), "%", 100, best=None),
        Column("p99", _of("flood", "p99_seconds"), "s", best=None),
        Column("next", _of("flood", "next_seconds"), "s"),
    ),
    (
        Column("killed worker: failed", _of("killed", "failed")),
        Column("longest gap", _of("killed", "longest_gap_seconds"), "s"),
        Column("masks a second afterwards", _of("killed", "per_second_afterwards"), best=max),
    ),
    (
        Column("bad pictures: status", _statuses, best=None),
        Column("memory grew at most by", _of("hostile", "memory_growth_bytes"), "MB", 1e-6),
        Column("longest gap beside", _of("hostile", "longest_gap_seconds"), "s"),
    ),
    (
        Column("another model by", lambda runs: runs[0]["changed"]["by"], best=None),
        Column("seconds", _of("changed", "seconds"), "s"),
        Column("failed", _of("changed", "failed")),
        Column("longest gap", _of("changed", "longest_gap_seconds"), "s"),
    ),
)
"""The columns of each table."""


def draw(figures: Row, target: Path) -> None:
    """Draw masks per second, latency and memory of the servers as an SVG."""
    servers = [row for row in figures["masks"] if "bare" not in row["name"]][::-1]
    load = list(servers[0]["rates"])[-1]
    panels = {
        f"masks a second, {load}": [statistics.median(row["rates"][load]) for row in servers],
        "one client's mask, ms": [1000 * statistics.median(row["seconds"]) for row in servers],
        "memory, MB": [statistics.median(row["memory_bytes"]) / 1e6 for row in servers],
    }
    figure, axes = open_figure(len(panels), width=9.6, height=2.6)
    names = [short_name(row) for row in servers]
    colours = [DEFAULT if "Paddlepool" in name else OTHER for name in names]
    for axis, (title, values) in zip(axes, panels.items(), strict=True):
        bars = axis.barh(names, values, color=colours)
        axis.bar_label(bars, fmt="%.3g" if max(values) < 1000 else "%.0f", padding=2, fontsize=9)
        axis.set_title(title, fontsize=10)
        axis.set_xlim(0, max(values) * 1.25)
        axis.set_xticks([])
        axis.tick_params(labelleft=axis is axes[0])
    save_figure(figure, target)


def main() -> None:
    parser = page_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=8, help="turns of each server")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a busy phase")
    parser.add_argument("--repeats", type=int, default=2, help="times each trouble is made")
    args = parser.parse_args()

    def report(before: Row) -> Row:
        figures = run(args)
        return before | {figures["machine"].split(";")[0]: figures}

    machines = write_page(args, measure=report, page=page)
    images = (args.write or args.render).parent / "images"
    images.mkdir(exist_ok=True)
    draw(next(iter(machines.values())), images / "peers.svg")


if __name__ == "__main__":
    main()
