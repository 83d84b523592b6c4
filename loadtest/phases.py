"""The phases of the benchmark: one client's latency, throughput, liveness under load."""

from __future__ import annotations

import contextlib
import re
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bare import BarePool
from cases import Case
from harness import Connection, Reply, Server, request

from app.contracts.reasons import STAGES


def checked(connection: Connection, case: Case) -> Reply:
    reply = connection.send(case.request)
    if reply.status != 200:
        raise RuntimeError(f"{case.name}: status {reply.status}: {reply.body[:300]!r}")
    return reply


def latency(server: Server, case: Case, bare: BarePool) -> dict[str, Any]:
    """One client: median milliseconds of wall time, of each stage, and of what no stage covers."""
    rows = []
    bare_run = []
    with contextlib.closing(Connection(server.port)) as connection:
        for number in range(case.requests + 3):
            reply = checked(connection, case)
            if number >= 3:
                rows.append({"wall": reply.seconds} | reply.stages())
            if case.rows == 1 and number % max(1, case.requests // 4) == 2:
                bare_run.append(bare.run(0.5, children=1)[1])
    beyond = [row["wall"] - row["infer"] for row in rows]
    median = {
        name: 1000 * statistics.median(row[name] for row in rows)
        for name in ("wall", *STAGES)
        if name in rows[0]
    }
    covered = [sum(row[s] for s in STAGES if s in row) for row in rows]
    return {
        "requests": len(rows),
        "beyond_infer_p50_ms": 1000 * statistics.median(beyond),
        "beyond_infer_p95_ms": 1000 * statistics.quantiles(beyond, n=20)[-1],
        "p50_ms": median,
        "uncovered_p50_ms": 1000
        * statistics.median(
            row["wall"] - seconds for row, seconds in zip(rows, covered, strict=True)
        ),
    } | ({"bare_run_p50_ms": 1000 * statistics.median(bare_run)} if bare_run else {})


def throughput(
    server: Server, case: Case, bare: BarePool, *, clients: int, seconds: float, rounds: int
) -> dict[str, Any]:
    """Rows a second of the server with `clients`, and of the bare loops, interleaved."""
    served: list[float] = []
    alone: list[float] = []
    busy: list[float] = []

    def server_turn() -> None:
        before, begin = infer_seconds(server, case), time.perf_counter()
        served.append(drive(server, case, clients=clients, seconds=seconds))
        elapsed = time.perf_counter() - begin
        busy.append((infer_seconds(server, case) - before) / elapsed / bare.size)

    for number in range(rounds):
        turns: list[Callable[[], None]] = [server_turn, lambda: alone.append(bare.run(seconds)[0])]
        for turn in turns if number % 2 == 0 else reversed(turns):
            turn()
    ratios = [a / b for a, b in zip(served, alone, strict=True)]
    return {
        "clients": clients,
        "rounds": rounds,
        "server_rows_per_second": statistics.median(served),
        "bare_rows_per_second": statistics.median(alone),
        "ratio": statistics.median(ratios),
        "ratio_lowest": min(ratios),
        "ratio_highest": max(ratios),
        "predictors_busy": statistics.median(busy),
    }


def infer_seconds(server: Server, case: Case) -> float:
    """Seconds that the model's predictors have run in all, from the server's own histogram."""
    with contextlib.closing(Connection(server.port)) as connection:
        text = connection.send(request("GET", "/metrics")).body.decode()
    model = re.escape(case.model.name)
    pattern = rf'^paddlepool_predictor_infer_seconds_sum\{{.*model="{model}".*\}} (\S+)$'
    return sum(map(float, re.findall(pattern, text, re.MULTILINE)))


def drive(server: Server, case: Case, *, clients: int, seconds: float) -> float:
    """Rows a second of closed-loop clients; each counts its whole requests over its own time."""

    def client(_: int) -> float:
        with contextlib.closing(Connection(server.port)) as connection:
            begin = now = time.perf_counter()
            done = 0
            while now - begin < seconds:
                checked(connection, case)
                done += case.rows
                now = time.perf_counter()
            return done / (now - begin)

    with ThreadPoolExecutor(clients) as pool:
        return sum(pool.map(client, range(clients)))


def liveness(server: Server, cases: Sequence[Case], *, seconds: float) -> dict[str, Any]:
    """Milliseconds of /v2/health/live every 20 ms while each case has twice as many clients as
    its model has instances; refusals (503) are the server's right and are not counted as work."""
    stop = threading.Event()

    def load(case: Case) -> None:
        with contextlib.closing(Connection(server.port)) as connection:
            while not stop.is_set():
                connection.send(case.request)

    counts = [2 * case.model.config.group(case.model.config.default_group).count for case in cases]
    probe = request("GET", "/v2/health/live")
    taken = []
    with (
        ThreadPoolExecutor(sum(counts)) as pool,
        contextlib.closing(Connection(server.port)) as connection,
    ):
        for case, count in zip(cases, counts, strict=True):
            for _ in range(count):
                pool.submit(load, case)
        try:
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                reply = connection.send(probe)
                if reply.status != 200:
                    raise RuntimeError(f"liveness answered {reply.status}")
                taken.append(1000 * reply.seconds)
                time.sleep(0.02)
        finally:
            stop.set()
    taken.sort()
    return {
        "clients": sum(counts),
        "probes": len(taken),
        "p50_ms": statistics.median(taken),
        "p99_ms": taken[int(len(taken) * 0.99)],
        "max_ms": taken[-1],
    }
