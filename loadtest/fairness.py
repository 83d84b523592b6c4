"""Measure small requests beside a caller with large ones, and alone, in turns.

    .venv/bin/python loadtest/fairness.py [--pause 1.0] [--own-config]

The emotion model serves a task of this script, whose requests say how many jobs they have. 40
callers, each with its own key, send one job at a time and pause `--pause` seconds on average in
between. In every second phase, one more caller sends requests of 500 jobs, one after another. All
settings of the model are the defaults: one process, runs of one row. With --own-config they are
those of its config.toml: a process for each core, runs of up to eight rows. Exit code 1: p95 beside
the large requests is more than `--most` times p95 alone. A request that fails ends the script.
"""

import argparse
import asyncio
import contextlib
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import uvloop
from fastapi import APIRouter
from harness import ROOT, Server, free_port, request, running_program
from load_clients import checked, connected
from tqdm import tqdm

from paddlepool.cli import main as paddlepool
from paddlepool.contracts.ports import RequestContext
from paddlepool.contracts.tensors import Tensors
from paddlepool.engine.dataplane import ready
from paddlepool.service.api.routes import RoutingDep
from paddlepool.service.api.services import ServicesDep
from paddlepool.settings.server import Settings
from paddlepool.tasks import PIPELINES
from paddlepool.tasks.task import Task

CALLERS, JOBS, TOKENS = 40, 500, 32
KEYS = [f"key-{number:02}-of-a-caller" for number in range(CALLERS + 1)]
SERVE = "serve"
EMOTION = ROOT / "model_repo" / "emotion"

Latencies = tuple[list[float], list[float]]


class LinesPipeline:
    """A payload is the number of jobs."""

    async def run(self, payload: int, context: RequestContext) -> int:
        ids = np.ones((1, TOKENS), np.int64)
        job: Tensors = {"input_ids": ids, "attention_mask": ids}
        return len(await context.infer([job] * payload))

    def close(self) -> None:
        pass


async def read_lines(jobs: int, services: ServicesDep, routing: RoutingDep) -> dict[str, int]:
    options = routing.options(services.settings)
    output = await services.dataplane.run("lines", ready(jobs), **options)
    return {"jobs": output.value}


def endpoints(_: Settings) -> APIRouter:
    router = APIRouter()
    router.add_api_route("/lines", read_lines, methods=["POST"])
    return router


TASK = Task(build=lambda _info, _workers: LinesPipeline(), endpoints=endpoints)


@contextlib.contextmanager
def server(*, own_config: bool) -> Iterator[Server]:
    """Serve the emotion model with the task of this script."""
    with tempfile.TemporaryDirectory() as directory:
        model = Path(directory) / "emotion"
        shutil.copytree(EMOTION, model)
        config = model / "config.toml"
        text = config.read_text("utf-8").replace('"auto"', '"onednn"')
        text = text.replace('pipeline = "sentiment"', 'pipeline = "lines"')
        text = text[: text.index("[parameters]")]
        config.write_text(text if own_config else 'pipeline = "lines"\ndefault = true\n', "utf-8")
        port = free_port()
        environment = {
            "PADDLEPOOL_MODEL_REPOSITORY": directory,
            "PADDLEPOOL_PORT": str(port),
            "PADDLEPOOL_API_KEYS": ",".join(KEYS),
            "PADDLEPOOL_PROVE_GROUPS": "off",
            "PADDLEPOOL_STATE_FILE": "off",
        }
        command = [sys.executable, Path(__file__), SERVE]
        with running_program(command, port, environment=environment) as running:
            yield running


def lines_request(jobs: int, key: str) -> bytes:
    headers = {"X-Api-Key": key, "Content-Length": "0"}
    return request("POST", f"/lines?jobs={jobs}&timeout_ms=30000", headers=headers)


async def phase(port: int, *, large: bool, seconds: float, pause: float, seed: int) -> Latencies:
    """Run all callers for some seconds; return the seconds of small and of large requests."""
    small: list[float] = []
    pages: list[float] = []
    end = time.perf_counter() + seconds

    async def caller(key: str, jobs: int, pause: float, latencies: list[float]) -> None:
        draw, sent = random.Random(f"{seed} {key}"), lines_request(jobs, key)
        async with connected(port) as exchange:
            await asyncio.sleep(draw.uniform(0, pause))
            while time.perf_counter() < end:
                latencies.append(checked(await exchange.send(sent)).seconds)
                await asyncio.sleep(draw.expovariate(1 / pause) if pause else 0)

    callers = [caller(key, 1, pause, small) for key in KEYS[1:]]
    if large:
        callers.append(caller(KEYS[0], JOBS, 0.0, pages))
    await asyncio.gather(*callers)
    return small, pages


def main(arguments: Sequence[str]) -> int:
    if arguments == [SERVE]:
        PIPELINES["lines"] = "__main__"
        return paddlepool([SERVE])
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pause", type=float, default=1.0, help="seconds, on average")
    parser.add_argument("--seconds", type=float, default=4.0, help="of a phase")
    parser.add_argument("--rounds", type=int, default=4, help="pairs of phases")
    parser.add_argument("--most", type=float, default=2.0, help="ratio, else exit 1")
    parser.add_argument("--own-config", action="store_true", help="the model's config.toml")
    args = parser.parse_args(arguments)
    alone: list[float] = []
    beside: list[float] = []
    pages: list[float] = []
    with server(own_config=args.own_config) as running:
        run = partial(phase, running.port, pause=args.pause)
        uvloop.run(run(large=True, seconds=1.0, seed=0))
        for number in tqdm(range(args.rounds), unit="round", disable=None):
            for large in (False, True) if number % 2 else (True, False):
                small, answered = uvloop.run(run(large=large, seconds=args.seconds, seed=number))
                (beside if large else alone).extend(small)
                pages += answered
    quantiles = [np.quantile(latencies, (0.5, 0.95)) for latencies in (alone, beside)]
    for name, (p50, p95) in zip(("alone", "beside"), quantiles, strict=True):
        print(f"{name}: p50 {1000 * p50:.1f} ms, p95 {1000 * p95:.1f} ms")
    ratio = quantiles[1][1] / quantiles[0][1]
    print(f"p95 ratio {ratio:.2f}; {len(pages)} large requests, p50 {np.median(pages):.2f} s")
    return 0 if ratio <= args.most else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
