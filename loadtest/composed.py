"""Measure a task over two models: overload, and small requests beside large ones.

    .venv/bin/python loadtest/composed.py [overload] [fairness] [--pause 1.0]

The task of this script finds the lines of a page with one model and reads each line with another.
Both are copies of the emotion model; the second pads lines of different length to ragged axes.

`overload` sends three times the capacity, pages of 8 lines. A request is admitted unless it is
refused before its first run. At least 99 % of the admitted ones must be answered, and goodput must
be at least 0.9 of the capacity.

`fairness`: 40 callers, each with its own key, send pages of one line and pause `--pause` seconds on
average in between. In every second phase, one more caller sends pages of 500 lines, one after
another. The p95 of small pages may then be at most twice their p95 alone, in the median of the
rounds. A request that fails ends the script.

Exit code 1: a figure is missed. Without names, both are measured, in about a minute.
"""

import argparse
import asyncio
import contextlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import uvloop
from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from harness import ROOT, Server, request, running_server
from load_clients import FACTOR, Exchange, HttpWay, arrivals, checked, connected
from tqdm import tqdm

from paddlepool.plugin import (
    RequestContext,
    RoutingDep,
    ServedModelInfo,
    ServicesDep,
    Settings,
    Task,
    Tensors,
    Workers,
    errors,
    output_headers,
    ready,
)

CALLERS, PAGE, LARGE_PAGE = 40, 8, 500
KEYS = [f"key-{number:02}-of-a-caller" for number in range(CALLERS + 1)]
ANSWERED, GOODPUT, RATIO = 0.99, 0.9, 2.0
EMOTION = ROOT / "model_repo" / "emotion"
RAGGED = "".join(
    f'[[ragged]]\ninput = "{name}"\naxis = 1\nstep = 16\nmax = 128\n\n'
    for name in ("input_ids", "attention_mask")
)
PARTS = 'pipeline = "pages"\n\n[parts]\nfind = "finder"\nread = "reader"\n'


def line_of(length: int) -> Tensors:
    ids = np.ones((1, length), np.int64)
    return {"input_ids": ids, "attention_mask": ids}


class PagesPipeline:
    """A payload is the number of lines."""

    async def run(self, payload: int, context: RequestContext) -> int:
        lines = [line_of(17 + number % 32) for number in range(payload)]
        try:
            await context.infer([line_of(32)], part="find")
            return len(await context.infer(lines, part="read"))
        except errors.Overloaded as error:  # this request was admitted: no 503
            raise errors.BackendError("refused after it was admitted") from error

    def payload_of(self, sample: bytes) -> int:
        return int(sample)

    def answer_of(self, value: int) -> int:
        return value

    def check(self, answer: int, expected: int) -> None:
        if answer != expected:
            raise errors.BackendError(f"{answer} lines, expected {expected}")

    def close(self) -> None:
        pass


async def read_page(lines: int, services: ServicesDep, routing: RoutingDep) -> Response:
    options = routing.options(services.settings)
    output = await services.dataplane.run("pages", ready(lines), **options)
    return JSONResponse({"lines": output.value}, headers=output_headers(output))


def endpoints(_: Settings) -> APIRouter:
    router = APIRouter()
    router.add_api_route("/pages", read_page, methods=["POST"])
    return router


def build(_info: ServedModelInfo, _workers: Workers) -> PagesPipeline:
    return PagesPipeline()


TASK = Task(build=build, endpoints=endpoints, parts=("find", "read"))


@contextlib.contextmanager
def server() -> Iterator[Server]:
    """Serve the task of this script."""
    path = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))))
    with tempfile.TemporaryDirectory() as directory:
        repository = Path(directory)
        for name, tables in (("finder", ""), ("reader", RAGGED)):
            shutil.copytree(EMOTION, repository / name)
            config = repository / name / "config.toml"
            text = config.read_text("utf-8").replace('"auto"', '"onednn"')
            text = text.replace('pipeline = "sentiment"\ndefault = true', "")
            config.write_text(text[: text.index("[parameters]")] + tables, "utf-8")
        version = repository / "pages" / "1"
        version.mkdir(parents=True)
        (repository / "pages" / "config.toml").write_text(PARTS, "utf-8")
        (version / "sample.txt").write_text("2", "ascii")
        environment = {
            "PYTHONPATH": path,
            "PADDLEPOOL_TASKS": f"pages={Path(__file__).stem}",
            "PADDLEPOOL_API_KEYS": ",".join(KEYS),
            "PADDLEPOOL_MODEL_REPOSITORY": directory,
        }
        seal = [str(Path(sys.executable).with_name("paddlepool")), "models", "seal", str(version)]
        subprocess.run(seal, env=os.environ | environment, check=True, stdout=subprocess.DEVNULL)
        with running_server(repository, environment=environment) as running:
            yield running


def page_request(lines: int, key: str, *, timeout: float) -> bytes:
    path = f"/pages?lines={lines}&timeout_ms={timeout * 1000:.0f}"
    return request("POST", path, headers={"X-Api-Key": key, "Content-Length": "0"})


def overload(running: Server, *, seconds: float) -> bool:
    """Send three times the capacity; whether the figures are reached."""
    way = HttpWay(running, page_request(PAGE, KEYS[0], timeout=2.0))
    way.rate(clients=8, seconds=1.0)
    capacity = way.rate(clients=8, seconds=seconds)
    began = time.perf_counter()
    replies = arrivals(
        running.port, way.request, rate=FACTOR * capacity, seconds=seconds, draw=random.Random(0)
    )
    elapsed = time.perf_counter() - began
    statuses = Counter(reply.status for reply in replies)
    answered, admitted = statuses[200], len(replies) - statuses[503]
    goodput = answered / elapsed / capacity
    print(
        f"overload: capacity {capacity:.1f} pages/s, {len(replies)} sent, {admitted} admitted, "
        f"{answered} answered ({answered / max(1, admitted):.1%}), goodput {goodput:.2f}"
    )
    return answered >= ANSWERED * admitted and goodput >= GOODPUT


async def phase(
    port: int, *, large: bool, seconds: float, pause: float, seed: int
) -> tuple[list[float], list[float]]:
    """Run all callers for some seconds; return the seconds of small and of large requests."""
    small: list[float] = []
    pages: list[float] = []
    end = time.perf_counter() + seconds

    async def caller(key: str, lines: int, pause: float, latencies: list[float]) -> None:
        draw, sent = random.Random(f"{seed} {key}"), page_request(lines, key, timeout=30.0)
        async with connected(port, Exchange) as exchange:
            await asyncio.sleep(draw.uniform(0, pause))
            while time.perf_counter() < end:
                latencies.append(checked(await exchange.send(sent)).seconds)
                await asyncio.sleep(draw.expovariate(1 / pause) if pause else 0)

    callers = [caller(key, 1, pause, small) for key in KEYS[1:]]
    if large:
        callers.append(caller(KEYS[0], LARGE_PAGE, 0.0, pages))
    await asyncio.gather(*callers)
    return small, pages


def fairness(running: Server, *, seconds: float, rounds: int, pause: float) -> bool:
    """Measure small pages alone and beside large ones, in turns; whether the figure is reached."""
    small: dict[bool, list[list[float]]] = {False: [], True: []}
    pages: list[float] = []
    run = partial(phase, running.port, pause=pause)
    uvloop.run(run(large=True, seconds=1.0, seed=0))
    for number in tqdm(range(rounds), unit="round", disable=None):
        for large in (False, True) if number % 2 else (True, False):
            latencies, answered = uvloop.run(run(large=large, seconds=seconds, seed=number))
            small[large].append(latencies)
            pages += answered
    for name, phases in zip(("alone", "beside"), small.values(), strict=True):
        p50, p95 = 1000 * np.quantile(np.concatenate(phases), (0.5, 0.95))
        print(f"fairness, small pages {name}: p50 {p50:.1f} ms, p95 {p95:.1f} ms")
    ratios = [
        np.quantile(beside, 0.95) / np.quantile(alone, 0.95)
        for alone, beside in zip(*small.values(), strict=True)
    ]
    ratio = float(np.median(ratios))
    print(
        f"fairness: p95 ratio {ratio:.2f}, the median of {rounds} rounds from {min(ratios):.2f} "
        f"to {max(ratios):.2f}; {len(pages)} large pages, p50 {np.median(pages):.2f} s"
    )
    return ratio <= RATIO


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", nargs="*", help="overload, fairness; default: both")
    parser.add_argument("--pause", type=float, default=1.0, help="seconds, on average")
    parser.add_argument("--seconds", type=float, default=4.0, help="of a phase")
    parser.add_argument("--rounds", type=int, default=4, help="pairs of phases of fairness")
    args = parser.parse_args(arguments)
    if unknown := set(args.what) - {"overload", "fairness"}:
        parser.error(f"no measurement {', '.join(sorted(unknown))}")
    reached = []
    with server() as running:
        if "overload" in args.what or not args.what:
            reached.append(overload(running, seconds=args.seconds))
        if "fairness" in args.what or not args.what:
            run = partial(fairness, running, seconds=args.seconds, rounds=args.rounds)
            reached.append(run(pause=args.pause))
    return 0 if all(reached) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
