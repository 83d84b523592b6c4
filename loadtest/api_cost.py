"""What the API process costs a request, beside another checkout, a probe and bare loops, in turns.

    .venv/bin/python loadtest/api_cost.py [--before ../before] [--probe one_loop_probe.py]

Every server answers texts with the same int8 program on as many predictors as there are cores. Per
text: processor time of the API process with 1 and 8 clients, texts a second with 8 and 32, and the
p50 of one client, beside a bare loop over the program. `/v2/health/live` and a text that
is only validated are asked of a bare FastAPI application, too. --probe is the path of a program
`PROBE PROGRAM.onnx TOKENIZER.json --port N --predictors N` that answers `POST /sentiment`; it is
started, never imported. Printed are medians over rounds, and this checkout's as a ratio to each.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cases import TEXT, text_request
from closed_loop import HttpWay, one_client
from harness import (
    HOST,
    ROOT,
    STOP_SECONDS,
    Connection,
    cpu_seconds,
    free_port,
    request,
    running_server,
)
from peers import loops
from pydantic import BaseModel
from tqdm import tqdm

from app.resources import available_cores

MODEL, GROUP = "emotion", "onnxruntime_int8"
START_SECONDS = 60.0
OURS, BEFORE, PROBE, FASTAPI, LOOP = "this", "before", "probe", "FastAPI", "loop"
LIVE = request("GET", "/v2/health/live")


class Text(BaseModel):
    """What the bare application and the probe are sent."""

    text: str


@dataclass(frozen=True, slots=True)
class Side:
    """A server, and the requests that it is asked; empty where it has no such endpoint."""

    port: int
    pid: int
    text: bytes = b""
    live: bytes = b""


def int8_repository(directory: Path) -> Path:
    """The model alone; its int8 group answers by default, with a predictor for each core."""
    shutil.copytree(ROOT / "model_repo" / MODEL, directory / MODEL)
    file = directory / MODEL / "config.toml"
    text = file.read_text("utf-8")
    for pattern, replacement in (
        (r'default_group = "auto".*', f'default_group = "{GROUP}"'),
        (rf'(name = "{GROUP}"\n(?:.*\n)*?)start = "on_demand"', r'\1count = "cores"'),
    ):
        text, times = re.subn(pattern, replacement, text, count=1)
        if times != 1:
            raise RuntimeError(f"{file}: nothing matches {pattern!r}")
    file.write_text(text, "utf-8")
    return directory


@contextlib.contextmanager
def program(command: list[str | Path], port: int) -> Iterator[int]:
    """The pid of a program that listens on a port of this machine; ended with the block."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            until = time.perf_counter() + START_SECONDS
            while not _listens(port):
                if process.poll() is not None or time.perf_counter() > until:
                    raise RuntimeError(f"{command[1]} does not listen")
                time.sleep(0.1)
            yield process.pid
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS)
            process.kill()


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError):
        Connection(port).close()
        return True
    return False


def bare_fastapi(port: int) -> None:
    """Serve a route that computes nothing, and one that validates a text."""
    import uvicorn
    from fastapi import FastAPI

    application = FastAPI()

    @application.get("/v2/health/live")
    async def live() -> dict[str, bool]:
        return {"live": True}

    @application.post("/sentiment")
    async def sentiment(body: Text) -> list[dict[str, str | float]]:
        return [{"label": "sad", "score": 0.5}] if body.text else []

    uvicorn.run(application, host=HOST, port=port, log_level="warning", access_log=False)


def sides(
    stack: contextlib.ExitStack, given: argparse.Namespace, repository: Path
) -> dict[str, Side]:
    """Every server that takes part, ready; all end with the stack."""
    version = newest(repository)
    found = {}
    for name, checkout in ((OURS, ROOT), (BEFORE, given.before)):
        if checkout is not None:
            server = stack.enter_context(running_server(repository, checkout=checkout))
            found[name] = Side(server.port, server.pid, text_request(TEXT), LIVE)
    plain = request(
        "POST", "/sentiment", json.dumps({"text": TEXT}).encode(), content_type="application/json"
    )
    if given.probe is not None:
        port = free_port()
        command = [sys.executable, given.probe, version / "int8.onnx", version / "tokenizer.json"]
        command += ["--port", str(port), "--predictors", str(max(1, int(available_cores())))]
        found[PROBE] = Side(port, stack.enter_context(program(command, port)), plain)
    port = free_port()
    pid = stack.enter_context(program([sys.executable, __file__, "--bare", str(port)], port))
    found[FASTAPI] = Side(port, pid, plain, LIVE)
    return found


def newest(repository: Path) -> Path:
    """The version that is served."""
    return max((repository / MODEL).glob("[0-9]*"), key=lambda each: int(each.name))


def measures(side: Side, *, seconds: float) -> Iterator[tuple[str, float]]:
    """What one side does in one round."""
    if side.text:
        way = HttpWay(side.port, side.text)
        yield "1 text, p50, ms", 1000 * statistics.median(one_client(way, seconds=seconds))
        for clients in (1, 8, 32):
            before, began = cpu_seconds(side.pid, below=False), time.perf_counter()
            rate = way.rate(clients=clients, seconds=seconds)
            done = rate * (time.perf_counter() - began)
            spent = cpu_seconds(side.pid, below=False) - before
            yield f"a text, {clients} clients, API process, ms", 1000 * spent / done
            yield f"texts a second, {clients} clients", rate
    if side.live:
        way = HttpWay(side.port, side.live)
        for clients in (1, 8):
            yield (
                f"/v2/health/live a second, {clients} clients",
                way.rate(clients=clients, seconds=seconds),
            )


def show(taken: dict[str, dict[str, list[float]]]) -> None:
    """A line for each measure: the median of each side, and this checkout's ratio to it."""
    for measure, found in taken.items():
        ours = found[OURS]
        cells = [f"{OURS} {statistics.median(ours):9.2f}"]
        for name, theirs in found.items():
            if name != OURS:
                ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
                cells.append(f"{name} {statistics.median(theirs):9.2f} ({ratio:.2f})")
        print(f"{measure:42}" + "   ".join(cells))


def thread_names(pid: int) -> list[str]:
    return sorted(
        file.read_text("utf-8").strip() for file in Path(f"/proc/{pid}/task").glob("*/comm")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--before", type=Path, metavar="DIR", help="another checkout, with .venv")
    parser.add_argument("--probe", type=Path, metavar="FILE", help="a program to measure against")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a phase")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured here")
    parser.add_argument("--bare", type=int, metavar="PORT", help="only serve bare FastAPI there")
    given = parser.parse_args()
    if given.bare is not None:
        bare_fastapi(given.bare)
        return
    taken: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        repository = int8_repository(Path(directory))
        servers = sides(stack, given, repository)
        loop = loops(
            "onnxruntime as served",
            "text",
            model=newest(repository) / "int8.onnx",
            payload=TEXT.encode(),
            threads=1,
            loads=(),
        )
        looping = stack.enter_context(loop)
        for side in servers.values():
            for _ in measures(side, seconds=min(0.5, given.seconds)):
                pass
        for number in tqdm(range(given.rounds), unit="round", disable=None):
            order = [*servers.items()][:: 1 if number % 2 else -1]
            for name, side in order:
                for measure, value in measures(side, seconds=given.seconds):
                    taken.setdefault(measure, {}).setdefault(name, []).append(value)
            alone = 1000 * statistics.median(looping.one()[0] for _ in range(50))
            taken["1 text, p50, ms"].setdefault(LOOP, []).append(alone)
        threads = thread_names(servers[OURS].pid)
    show(taken)
    print(f"{len(threads)} threads of the API process: {', '.join(threads)}")
    if given.json:
        given.json.write_text(json.dumps(taken, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
