"""The same pictures and texts through this server and through its peers, in one table.

    .venv/bin/python loadtest/peers.py [--rounds N] [--json FILE] [--no-rembg]

Pictures: `/segment` (1 MP JPEG to mask PNG), the rembg server, and bare loops over ONNX Runtime and
OpenVINO, all on the weights of model_repo/u2netp converted to ONNX. Texts: `/sentiment` and a bare
ONNX Runtime loop. Everyone has the same number of threads in all; one run, in turns, so that a busy
machine slows all of them. rembg is installed once into .venv-peers; nothing needs the network after
that. Exit code 0 whoever wins: it prints what it measures.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from cases import TEXT, picture
from harness import ROOT, Connection, Server, memory_of, request, running_server
from peer_rembg import install, mask_request, running_rembg
from tqdm import tqdm

from app.backends.onnx_conversion import onnx_bytes
from app.backends.process import NICE
from app.process.child import Child, Limits
from app.repository.layout import ModelFiles, ModelRepository

HERE = Path(__file__).resolve().parent


@dataclass(slots=True, kw_only=True)
class Contender:
    """Someone who does the work. `one()` does it once; `busy(seconds)` says how often a second.

    `threads_each` compute one request; `clients` keep all of its threads busy.
    """

    name: str
    task: str
    threads_each: int
    clients: int
    one: Callable[[], tuple[float, bytes]]
    busy: Callable[[float], float]
    memory: Callable[[], int]
    seconds: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    result: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What is printed of a contender; ratios are to this server's default group, above 1: more."""

    name: str
    task: str
    threads_each: int
    clients: int
    p50_seconds: float
    p95_seconds: float
    per_second: float
    memory_bytes: int
    latency_ratio: float
    throughput_ratio: float
    memory_ratio: float
    agreement: str


def served(
    name: str,
    task: str,
    *,
    port: int,
    pid: int,
    message: bytes,
    clients: int,
    threads_each: int,
) -> Contender:
    """Anyone who answers over HTTP."""

    def one() -> tuple[float, bytes]:
        with contextlib.closing(Connection(port)) as connection:
            reply = connection.send(message)
        if reply.status != 200:
            raise RuntimeError(f"{name}: status {reply.status}: {reply.body[:300]!r}")
        return reply.seconds, reply.body

    def client(seconds: float) -> float:
        began = now = time.perf_counter()
        done = 0
        with contextlib.closing(Connection(port)) as connection:
            while now - began < seconds:
                if connection.send(message).status != 200:
                    raise RuntimeError(f"{name}: a request failed under load")
                done += 1
                now = time.perf_counter()
        return done / (now - began)

    def busy(seconds: float) -> float:
        with ThreadPoolExecutor(clients) as pool:
            return sum(pool.map(client, [seconds] * clients))

    return Contender(
        name=name,
        task=task,
        one=one,
        busy=busy,
        memory=lambda: memory_of(pid)["pss"],
        clients=clients,
        threads_each=threads_each,
    )


@contextlib.contextmanager
def loops(
    framework: str, task: str, *, model: Path, payload: bytes, threads: int, tokenizer: str = ""
) -> Iterator[Contender]:
    """One-thread loops, as many as there are threads."""
    opening = {
        "framework": framework,
        "task": task,
        "model": str(model),
        "threads": 1,
        "tokenizer": tokenizer,
    }
    limits = Limits(nice=NICE, environment={"PYTHONPATH": f"{HERE}:{HERE.parent}"})
    body = {"body": np.frombuffer(payload, np.uint8)}
    with contextlib.ExitStack() as stack:
        children = []
        for _ in range(threads):
            child = Child("peer_loops:open_loop", opening, limits=limits)
            children.append(stack.enter_context(contextlib.closing(child)))
        pool = stack.enter_context(ThreadPoolExecutor(threads))

        def one() -> tuple[float, bytes]:
            reply = children[0].call({"times": 1}, body, timeout=60)
            return reply.meta["durations"][0], reply.arrays["result"].tobytes()

        def busy(seconds: float) -> float:
            call = {"seconds": seconds}
            replies = pool.map(lambda c: c.call(call, body, timeout=seconds + 60).meta, children)
            return float(sum(reply["runs"] / reply["seconds"] for reply in replies))

        yield Contender(
            name=f"bare {framework} loop",
            task=task,
            threads_each=1,
            clients=threads,
            one=one,
            busy=busy,
            memory=lambda: sum(memory_of(child.pid)["pss"] for child in children),
        )


def as_onnx(files: ModelFiles, directory: Path) -> Path:
    """The served program as an ONNX file."""
    target = directory / f"{files.name}.onnx"
    manifest = files.manifest
    opening = {
        "directory": str(files.directory.resolve()),
        "program": manifest.program,
        "params": manifest.params,
    }
    target.write_bytes(onnx_bytes(opening))
    return target


@contextlib.contextmanager
def server_of_one(files: ModelFiles, scratch: Path) -> Iterator[Server]:
    """A server with this model alone, so that its memory is that of the task."""
    repository = scratch / f"only-{files.name}"
    shutil.copytree(files.directory.parent, repository / files.name)
    with running_server(repository, environment={"PADDLEPOOL_PROVE_GROUPS": "off"}) as server:
        yield server


@contextlib.contextmanager
def picture_contenders(arguments: argparse.Namespace, scratch: Path) -> Iterator[list[Contender]]:
    repository = ModelRepository(arguments.repository)
    files = repository.read("u2netp", repository.versions("u2netp")[0])
    onnx, body = as_onnx(files, scratch), picture()
    group = files.config.group(files.config.default_group)
    threads = group.count * group.threads
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(server_of_one(files, scratch))
        ours = served(
            f"paddlepool /segment ({group.name})",
            "picture",
            port=server.port,
            pid=server.pid,
            message=request("POST", "/segment?output=mask", body, content_type="image/jpeg"),
            threads_each=group.threads,
            clients=group.count,
        )
        found = [ours]
        if arguments.rembg:
            program = install()
            rembg = stack.enter_context(
                running_rembg(program, onnx, scratch / "rembg", threads=threads)
            )
            found.append(
                served(
                    "rembg server",
                    "picture",
                    port=rembg.port,
                    pid=rembg.pid,
                    message=mask_request(body),
                    threads_each=threads,
                    clients=threads,
                )
            )
        for framework in ("onnxruntime", "openvino"):
            found.append(
                stack.enter_context(
                    loops(framework, "picture", model=onnx, payload=body, threads=threads)
                )
            )
        yield found


@contextlib.contextmanager
def text_contenders(arguments: argparse.Namespace, scratch: Path) -> Iterator[list[Contender]]:
    repository = ModelRepository(arguments.repository)
    files = repository.read("emotion", repository.versions("emotion")[0])
    onnx = as_onnx(files, scratch)
    group = files.config.group(files.config.default_group)
    threads = group.count * group.threads
    body = json.dumps({"inputs": TEXT}).encode()
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(server_of_one(files, scratch))
        found = [
            served(
                f"paddlepool /sentiment ({group.name})",
                "text",
                port=server.port,
                pid=server.pid,
                message=request("POST", "/sentiment", body, content_type="application/json"),
                threads_each=group.threads,
                clients=4 * group.count,
            ),
            stack.enter_context(
                loops(
                    "onnxruntime",
                    "text",
                    model=onnx,
                    payload=TEXT.encode(),
                    threads=threads,
                    tokenizer=str((files.directory / "tokenizer.json").resolve()),
                )
            ),
        ]
        yield found


def measure(contenders: Sequence[Contender], *, requests: int, seconds: float, rounds: int) -> None:
    """Latencies of one client, then the rate of a busy contender, in turns; others stand idle."""
    for each in contenders:
        for _ in range(3):
            each.one()
    for number in tqdm(range(rounds), desc=contenders[0].task, unit="round", disable=None):
        turn = number % len(contenders)
        for each in (*contenders[turn:], *contenders[:turn]):
            for _ in range(requests):
                taken, each.result = each.one()
                each.seconds.append(taken)
            each.rates.append(each.busy(seconds))


def rows(contenders: Sequence[Contender]) -> list[Row]:
    """The first one is what the others are compared with; ratios are medians over rounds."""
    ours = contenders[0]
    return [
        Row(
            name=each.name,
            task=each.task,
            threads_each=each.threads_each,
            clients=each.clients,
            p50_seconds=statistics.median(each.seconds),
            p95_seconds=float(np.quantile(each.seconds, 0.95)),
            per_second=statistics.median(each.rates),
            memory_bytes=each.memory(),
            latency_ratio=_ratio(each.seconds, ours.seconds),
            throughput_ratio=_ratio(each.rates, ours.rates),
            memory_ratio=each.memory() / ours.memory(),
            agreement=_agreement(each, ours),
        )
        for each in contenders
    ]


def _ratio(theirs: Sequence[float], ours: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(theirs, ours, strict=True))


def _agreement(each: Contender, ours: Contender) -> str:
    """That it is the same work: how far the results are from ours."""
    if each.task == "picture":
        found, expected = (
            np.asarray(cv2.imdecode(np.frombuffer(c.result, np.uint8), cv2.IMREAD_GRAYSCALE), float)
            for c in (each, ours)
        )
        return f"mask within {np.abs(found - expected).mean():.2f} of 255 levels"
    best = json.loads(ours.result)[0]["score"]
    score = best if each is ours else ast.literal_eval(each.result.decode())[0][1]
    return f"best score within {abs(score - best):.0e}"


def show(task: str, table: Sequence[Row], *, threads: int) -> None:
    """Latency, rate and memory, each beside its ratio to the first row."""
    word = "pictures" if task == "picture" else "texts"
    print(f"\n{word}: {threads} threads for each, one run, in turns; ratios to the first line")
    print(
        f"{'':34}{'threads':>8}{'one client':>12}{'p95':>9}{'ratio':>7}"
        f"{word + '/s':>12}{'ratio':>7}{'memory':>10}{'ratio':>7}"
    )
    for row in table:
        print(
            f"{row.name:34}{row.threads_each:8d}{1000 * row.p50_seconds:10.1f}ms"
            f"{1000 * row.p95_seconds:7.1f}ms{row.latency_ratio:7.2f}"
            f"{row.per_second:12.2f}{row.throughput_ratio:7.2f}"
            f"{row.memory_bytes / 1e6:8.0f}MB{row.memory_ratio:7.2f}   {row.agreement}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repository", type=Path, default=ROOT / "model_repo")
    parser.add_argument("--rounds", type=int, default=8, help="turns of each contender")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a busy phase")
    parser.add_argument("--no-rembg", dest="rembg", action="store_false", help="leave it out")
    parser.add_argument("--cores", type=int, help="use only so many of this machine's cores")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure here as well")
    arguments = parser.parse_args()
    if arguments.cores:
        os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[: arguments.cores]))
    report: dict[str, Any] = {"cores": len(os.sched_getaffinity(0)), "rows": []}
    with tempfile.TemporaryDirectory() as directory:
        scratch = Path(directory)
        for contest, requests in ((picture_contenders, 4), (text_contenders, 40)):
            with contest(arguments, scratch) as contenders:
                measure(
                    contenders,
                    requests=requests,
                    seconds=arguments.seconds,
                    rounds=arguments.rounds,
                )
                table = rows(contenders)
            bare = contenders[-1]
            show(table[0].task, table, threads=bare.threads_each * bare.clients)
            report["rows"] += [asdict(row) for row in table]
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
