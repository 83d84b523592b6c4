"""Measure the same pictures and texts on this server and its peers, in one table.

    .venv/bin/python loadtest/peers.py [--rounds N] [--task NAME] [--no-peers]
    .venv/bin/python loadtest/peers.py --before FILE [--task texts] [--rounds N]
    .venv/bin/python loadtest/peers.py --task ocr --ocr-data DIR [--rounds N] [--seconds S]

The task `ocr` is in peers_ocr.py, and runs only if it is named.

This server has its defaults and has chosen its instance group. Pictures are JPEGs of 1 MP. Masks:
`/segment`, also limited to float32, the servers of peer_servers.py, and bare loops over ONNX
Runtime and OpenVINO. Cut-outs as PNG: `/segment` and rembg. All run the weights of
model_repo/u2netp, the others as float32 ONNX.
Texts: `/sentiment` and bare ONNX Runtime loops. Bare loops also run the version's int8 program, if
any: "the same program without a server". Each table names the processor and the machine's load.

`--before` compares masks, or texts, with bare loops alone: on the version's int8 program and on
FILE, such as the int8.onnx of an earlier release. It prints the ratios to the latter.

All have the same cores and one worker per core. They take turns in one run, so that a busy machine
slows all of them. The peers are installed once in .venv-peers-*; after that, no network is needed.
"""

import argparse
import ast
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import peers_ocr
from cases import TEXT, mask_request, picture, text_request, wait_chosen
from harness import ROOT, Reply, Server, memory_of, request, running_server
from load_clients import HttpWay
from pages import Column, ranked_table
from peer_servers import PEER_SERVERS, REMBG, install, rembg_cutout, running
from strangers import CACHE
from tqdm import tqdm

from paddlepool.cli.shared import read_version
from paddlepool.engine.backends.handler import onnx_bytes
from paddlepool.engine.backends.process import NICE
from paddlepool.engine.process.child import Child
from paddlepool.engine.process.environment import Limits
from paddlepool.engine.process.replies import Reply as ChildReply
from paddlepool.models.repository.layout import ModelFiles, ModelRepository
from paddlepool.observability.build_info import describe_machine

HERE = Path(__file__).resolve().parent

BEFORE = ", int8 before"
REQUESTS = {"masks": 4, "cut-outs": 4, "texts": 40}
"""Requests of one client in each round."""


@dataclass(frozen=True, slots=True)
class LoopWay:
    """Bare loops, each of which does the same work again and again in its own process."""

    children: Sequence[Child]
    payload: bytes

    def _work(self, child: Child, seconds: float) -> ChildReply:
        body = {"body": np.frombuffer(self.payload, np.uint8)}
        return child.call({"seconds": seconds}, body, timeout=60 + seconds)

    def one(self) -> Reply:
        result = self._work(self.children[0], 0.0)
        return Reply(200, {}, result.arrays["result"].tobytes(), result.meta["seconds"])

    @contextlib.contextmanager
    def client(self) -> Iterator[Callable[[], Reply]]:
        yield self.one

    def rate(self, *, clients: int, seconds: float) -> float:  # noqa: ARG002 - all are always busy
        with ThreadPoolExecutor(len(self.children)) as pool:
            runs = pool.map(lambda child: self._work(child, seconds).meta, self.children)
            return float(sum(run["runs"] / run["seconds"] for run in runs))


Way = HttpWay | LoopWay


@dataclass(slots=True, kw_only=True)
class Contender:
    """A measured server or loop: one client's way, and clients with their way by name of load."""

    name: str
    alone: Way
    loads: Mapping[str, tuple[int, Way]]
    pids: Sequence[int]
    read: Callable[[Reply], bytes] = lambda reply: reply.body
    seconds: list[float] = field(default_factory=list)
    rates: dict[str, list[float]] = field(default_factory=dict)
    memory_bytes: list[int] = field(default_factory=list)
    result: bytes = b""


Contests = dict[str, list[Contender]]
"""The contenders of each task; the first is this server."""


def bare(
    stack: contextlib.ExitStack,
    programs: Sequence[tuple[str, Path, str]],
    task: str,
    payload: bytes,
    *,
    threads: int,
    loads: Iterable[str],
) -> Iterator[Contender]:
    """Start single-threaded loops, one per thread, for each framework, model and note.

    They do the same under every load, and end with the stack.
    """
    limits = Limits(nice=NICE, environment={"PYTHONPATH": f"{HERE}:{HERE.parent}"})
    for framework, model, note in programs:
        opening = {"framework": framework, "task": task, "model": str(model)}
        children = []
        for _ in range(threads):
            child = Child("peer_loops:open_loop", opening, limits=limits)
            children.append(stack.enter_context(contextlib.closing(child)))
        way = LoopWay(children, payload)
        yield Contender(
            name=f"bare {framework} loop{note}",
            alone=way,
            loads=dict.fromkeys(loads, (threads, way)),
            pids=[child.pid for child in children],
        )


def as_onnx(files: ModelFiles, directory: Path) -> Path:
    """Export the served program as an ONNX file, with its tokenizer beside it."""
    target = directory / f"{files.name}.onnx"
    opening = {
        "directory": str(files.directory.resolve()),
        "program": files.manifest.program,
        "params": files.manifest.params,
    }
    target.write_bytes(onnx_bytes(opening))
    if (tokenizer := files.directory / "tokenizer.json").exists():
        shutil.copy(tokenizer, directory)
    return target


def int8_of(files: ModelFiles) -> Path | None:
    """The program of the server's int8 groups, with a tokenizer beside it."""
    program = files.manifest.find("int8")
    return files.directory / program.program if program else None


@contextlib.contextmanager
def server_of_one(
    files: ModelFiles, scratch: Path, *, precision: str = "auto"
) -> Iterator[tuple[Server, str]]:
    """Run a server with only this model, so that its memory is that of the task.

    Yields it with the chosen group. Raises RuntimeError if it chooses none within ten minutes.
    """
    repository = scratch / f"only-{files.name}"
    shutil.copytree(files.directory.parent, repository / files.name, dirs_exist_ok=True)
    environment = {"PADDLEPOOL_PROVE_GROUPS": "started", "PADDLEPOOL_PRECISION": precision}
    with running_server(repository, environment=environment) as server:
        [choice] = wait_chosen(server)
        print(f"{files.name}: {choice['group']}, {choice['reason']}", file=sys.stderr)
        yield server, choice["group"]


@contextlib.contextmanager
def pictures(
    repository: ModelRepository, scratch: Path, *, threads: int, peers: bool = True
) -> Iterator[Contests]:
    """Compare masks, and cut-outs with rembg."""
    files = read_version(repository, "u2netp", None)
    onnx, body = as_onnx(files, scratch), picture()
    contests: Contests = {"masks": [], "cut-outs": []}

    def enter(task: str, name: str, server: Server, request: bytes, **options: Any) -> None:
        way = HttpWay(server, request)
        loads = {f"{n} clients": (n, way) for n in (threads, 2 * threads)}
        contests[task].append(
            Contender(name=name, alone=way, loads=loads, pids=[server.pid], **options)
        )

    def segment(output: str) -> bytes:
        path = f"/segment?output={output}&format=png"
        return request("POST", path, body, content_type="image/jpeg")

    with contextlib.ExitStack() as stack:
        server, chosen = stack.enter_context(server_of_one(files, scratch))
        enter("masks", f"paddlepool /segment ({chosen})", server, segment("mask"))
        enter("cut-outs", f"paddlepool /segment ({chosen})", server, segment("cutout"))
        exact = server_of_one(files, scratch, precision="exact")
        server, group = stack.enter_context(exact)
        if group != chosen:
            enter("masks", f"paddlepool /segment ({group})", server, segment("mask"))
        for peer in PEER_SERVERS if peers else ():
            try:
                install(peer)
                home = scratch / peer.name
                server = stack.enter_context(running(peer, onnx, home, workers=threads))
            except (subprocess.SubprocessError, OSError, RuntimeError) as error:
                print(f"{peer.name} IS LEFT OUT: {error}", file=sys.stderr)
                continue
            enter("masks", peer.name, server, peer.build(body), read=peer.read)
            if peer is REMBG:
                enter("cut-outs", peer.name, server, rembg_cutout(body))
        programs = [("onnxruntime", onnx, ""), ("openvino", onnx, "")]
        if int8 := int8_of(files):
            programs.append(("openvino", int8, ", int8"))
        masks = contests["masks"]
        masks += bare(stack, programs, "picture", body, threads=threads, loads=masks[0].loads)
        yield contests


@contextlib.contextmanager
def int8_programs(
    repository: ModelRepository, scratch: Path, *, threads: int, before: Path
) -> Iterator[Contests]:
    """Compare masks with bare loops on the version's int8 program and on another one."""
    files = read_version(repository, "u2netp", None)
    programs = [("openvino", before, BEFORE)]
    if int8 := int8_of(files):
        programs.append(("openvino", int8, ", int8"))
    with contextlib.ExitStack() as stack:
        server, group = stack.enter_context(server_of_one(files, scratch))
        body = picture()
        way = HttpWay(server, mask_request(body))
        served = Contender(
            name=f"paddlepool /segment ({group})",
            alone=way,
            loads={f"{n} clients": (n, way) for n in (threads, 2 * threads)},
            pids=[server.pid],
        )
        loops = bare(stack, programs, "picture", body, threads=threads, loads=served.loads)
        yield {"masks": [served, *loops]}


@contextlib.contextmanager
def texts(
    repository: ModelRepository, scratch: Path, *, threads: int, before: Path | None = None
) -> Iterator[Contests]:
    """Compare single texts from many clients, and lists of 32 texts from few.

    Bare loops run the int8 program `before`, or without it the float32 program, and the version's
    int8 program.
    """
    files = read_version(repository, "emotion", None)
    if before is None:
        programs = [("onnxruntime", as_onnx(files, scratch), "")]
    else:
        shutil.copy(files.directory / "tokenizer.json", scratch)
        programs = [("onnxruntime as served", Path(shutil.copy(before, scratch)), BEFORE)]
    if int8 := int8_of(files):
        programs.append(("onnxruntime as served", int8, ", int8"))
    with contextlib.ExitStack() as stack:
        server, group = stack.enter_context(server_of_one(files, scratch))
        single = HttpWay(server, text_request(TEXT))
        several = HttpWay(server, text_request([TEXT] * 32), 32)
        served = Contender(
            name=f"paddlepool /sentiment ({group})",
            alone=single,
            loads={"32 clients": (32, single), "4 of 32 texts": (4, several)},
            pids=[server.pid],
        )
        others = bare(stack, programs, "text", TEXT.encode(), threads=threads, loads=served.loads)
        yield {"texts": [served, *others]}


def measure(
    task: str, contenders: Sequence[Contender], *, seconds: float, rounds: int
) -> list[dict[str, Any]]:
    """Measure latencies of one client, then the rate under each load, in turns; others are idle.

    The one client keeps its connection, and its first request is not counted. Returns a row for
    each contender. Results are compared with those of the first.
    """
    for contender in contenders:
        for _ in range(3):
            contender.alone.one()
    for number in tqdm(range(rounds), desc=task, unit="round", disable=None):
        turn = number % len(contenders)
        for contender in (*contenders[turn:], *contenders[:turn]):
            with contender.alone.client() as send:
                send()  # opens the connection
                for _ in range(REQUESTS[task]):
                    reply = send()
                    contender.seconds.append(reply.seconds)
                    contender.result = contender.read(reply)
            for load, (clients, way) in contender.loads.items():
                rate = way.rate(clients=clients, seconds=seconds)
                contender.rates.setdefault(load, []).append(rate)
            contender.memory_bytes.append(sum(map(memory_of, contender.pids)))
    return [
        {
            "name": contender.name,
            "task": task,
            "seconds": contender.seconds,
            "rates": contender.rates,
            "memory_bytes": contender.memory_bytes,
            "agreement": _agreement(task, contender, contenders[0]),
        }
        for contender in contenders
    ]


def _agreement(task: str, contender: Contender, first: Contender) -> str:
    """Describe the difference of a contender's result from that of the first one."""
    if task == "texts":
        best = json.loads(first.result)[0]["score"]
        score = best if contender is first else ast.literal_eval(contender.result.decode())[0][1]
        return f"score within {abs(score - best):.0e} of 1"
    actual, expected = (
        np.asarray(cv2.imdecode(np.frombuffer(c.result, np.uint8), cv2.IMREAD_UNCHANGED), float)
        for c in (contender, first)
    )
    if task == "cut-outs":
        actual, expected = actual[..., 3], expected[..., 3]
    return f"alpha within {np.abs(actual - expected).mean():.2f} of 255 levels"


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table of measured rows: medians with the lowest and the highest figure.

    The last column is the difference of the results from those of the first row.
    """
    task = rows[0]["task"]

    def rates(load: str) -> Column:
        return Column(f"{task} a second, {load}", lambda row: row["rates"][load], best=max)

    columns = [
        Column("one client", lambda row: row["seconds"], "ms", 1000),
        *map(rates, rows[0]["rates"]),
        Column("memory", lambda row: row["memory_bytes"], "MB", 1e-6),
        Column(task.removesuffix("s"), lambda row: row["agreement"].split()[2], best=None),
    ]
    return ranked_table(columns, {short_name(row): row for row in rows})


def ratios(rows: Sequence[Mapping[str, Any]]) -> str:
    """Describe rates and one client's time as multiples of those of the row BEFORE.

    Rates are compared with those of the same round, times by their medians.
    """
    [base] = [row for row in rows if row["name"].endswith(BEFORE)]
    lines = [
        f"{row['name']}, {load}: {np.median(found):.3f} ({found.min():.3f}–{found.max():.3f})"
        for row in rows
        for load, rates in row["rates"].items()
        for found in [np.divide(rates, base["rates"][load])]
    ]
    for row in rows:
        times = np.median(row["seconds"]) / np.median(base["seconds"])
        lines.append(f"{row['name']}, one client: {times:.3f} times as long")
    return "\n".join(lines)


def short_name(row: Mapping[str, Any]) -> str:
    return str(row["name"]).replace(" /segment", "").replace("paddlepool", "Paddlepool")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=8, help="turns of each contender")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a busy phase")
    tasks = ("pictures", "texts", "ocr")
    parser.add_argument("--task", action="append", choices=tasks, help="only this")
    parser.add_argument(
        "--ocr-data", type=Path, metavar="DIR", help="for --task ocr: a folder with images/*.jpg"
    )
    parser.add_argument("--groups", default="", help="for --task ocr: detect:NAME,recognise:NAME")
    parser.add_argument("--environments", type=Path, default=CACHE.parent, help="of --task ocr")
    parser.add_argument(
        "--no-peers", dest="peers", action="store_false", help="bare loops alone beside this server"
    )
    parser.add_argument(
        "--before", type=Path, metavar="FILE", help="an int8.onnx that bare loops run"
    )
    arguments = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    if "ocr" in (arguments.task or ()):
        if arguments.ocr_data is None:
            parser.error("--task ocr needs --ocr-data")
        peers_ocr.run(
            arguments.ocr_data,
            arguments.environments,
            rounds=arguments.rounds,
            seconds=arguments.seconds,
            groups=arguments.groups,
        )
        arguments.task.remove("ocr")
        if not arguments.task:
            return
    repository = ModelRepository(ROOT / "model_repo")
    with tempfile.TemporaryDirectory() as directory:
        scratch = Path(directory)
        if before := arguments.before:
            programs = texts if arguments.task == ["texts"] else int8_programs
            with programs(repository, scratch, threads=cores, before=before) as contests:
                [(name, contenders)] = contests.items()
                rows = measure(name, contenders, seconds=arguments.seconds, rounds=arguments.rounds)
            print(f"\n{describe_machine(cores=cores)}; load {os.getloadavg()[0]:.1f}\n")
            print(table(rows))
            print(ratios(rows))
            return
        for task in arguments.task or ("pictures", "texts"):
            with (
                pictures(repository, scratch, threads=cores, peers=arguments.peers)
                if task == "pictures"
                else texts(repository, scratch, threads=cores)
            ) as contests:
                for name, contenders in contests.items():
                    rows = measure(
                        name, contenders, seconds=arguments.seconds, rounds=arguments.rounds
                    )
                    print(f"\n{describe_machine(cores=cores)}; load {os.getloadavg()[0]:.1f}\n")
                    print(table(rows))


if __name__ == "__main__":
    main()
