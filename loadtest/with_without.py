"""Measure a feature's cost or gain: the same requests with and without it, in turns.

    .venv/bin/python loadtest/with_without.py checkout ../before
    .venv/bin/python loadtest/with_without.py setting PADDLEPOOL_SHADOW_FRACTION=1 --measure users
    .venv/bin/python loadtest/with_without.py group emotion onednn onnxruntime_int8
    .venv/bin/python loadtest/with_without.py {api,overload,haproxy,ray,reload,canary}

`checkout` compares another checkout, which has its own .venv, with this one; `setting` a server
with and without these settings; `group` two instance groups of a model. `api` compares the API
process with a bare FastAPI application, with another checkout (`--before`), and with a program that
is started as `PROBE PROGRAM.onnx TOKENIZER.json --port N --predictors N` (`--probe`). `overload`
sends three times the capacity. `canary` has a model's newest version on trial beside the one that
answers. The others add HAProxy, Ray Serve and reloads to the plain server.

Both sides take turns in every round. A ratio above 1 means that the second side is better; its 90 %
interval comes from resampled rounds. Exit code 1: a ratio is below --least.
"""

import argparse
import contextlib
import json
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tomlkit
from cases import TEXT, load_request, mask_request, picture, text_request
from harness import (
    ROOT,
    Server,
    cpu_seconds,
    free_port,
    json_request,
    memory_of,
    repeated,
    request,
    running_program,
    running_server,
    send,
)
from load_clients import HttpWay, checked, one_client, overloaded, users
from replicas import INGRESSES, balancer, ray_up
from tqdm import tqdm

from paddlepool.cli.shared import read_version
from paddlepool.contracts.resources import available_cores
from paddlepool.evidence.comparison.result import align_columns
from paddlepool.models.repository.layout import ModelRepository

INT8_GROUP, LIVE = "onnxruntime_int8", "/v2/health/live"
KEY = "with-and-without"
NEVER = 100_000
"""More requests than are compared in a measurement: the most that the policy accepts."""
PLAIN = {"PADDLEPOOL_ADMIN_KEY": KEY}
RAY_SECONDS = 5.0
"""Time for Ray to restart HAProxy when a replica is ready, which closes its connections."""

USERS, PAUSE_SECONDS = 2, 0.1
"""Of the measure `users`; the pause is an average."""
MEASURES = ("one client", "users", "busy", "processor", "overloaded", "reloaded")
QUANTILES: Mapping[str, tuple[float, ...]] = {
    "one client": (0.5,),
    "users": (0.5, 0.95, 0.99),
    "processor": (0.5,),
}
"""Quantiles of the measures in seconds; the others are units per second."""

Phases = list[list[float]]
"""The figures of each round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The same work with and without the feature; `clients` keep the predictors busy."""

    name: str
    without: HttpWay
    within: HttpWay
    clients: int = 1
    model: str = ""
    measures: tuple[str, ...] = MEASURES
    """The measures that apply."""
    meanwhile: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext
    """Activity while `within` is measured."""
    overloads: bool = False
    """Whether `within` is measured under three times the capacity."""
    refusals: list[float] = field(default_factory=list)
    """Seconds of each rejection under overload."""


@dataclass(frozen=True, slots=True)
class Mode:
    """How to open the pairs of a mode, their measures, and its defaults."""

    open: Callable[[argparse.Namespace], AbstractContextManager[list[Pair]]]
    measures: tuple[str, ...]
    seconds: float = 4.0
    rounds: int = 6
    least: float = 0.0
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def run_phase(
    measure: str, pair: Pair, way: HttpWay, args: argparse.Namespace, *, seed: int
) -> list[float]:
    """Run one phase of one side; return seconds of its requests, or units per second."""
    seconds = args.seconds
    match measure:
        case "one client":
            return one_client(way, seconds=seconds)
        case "users":
            with users(way, number=USERS, pause=PAUSE_SECONDS, seed=seed) as completed:
                time.sleep(seconds)
            return completed
        case "busy":
            return [way.rate(clients=pair.clients, seconds=seconds)]
        case "processor":
            spent, began = cpu_seconds(way.server.pid, below=False), time.perf_counter()
            rate = way.rate(clients=pair.clients, seconds=seconds)
            done = rate * (time.perf_counter() - began)
            return [(cpu_seconds(way.server.pid, below=False) - spent) / done]
        case "overloaded":
            rate, refusals = overloaded(way, clients=pair.clients, seconds=seconds)
            pair.refusals.extend(refusals)
            return [rate]
        case "reloaded":
            with reloading(way.server.port, pair.model, every=0.0):
                return [way.rate(clients=1, seconds=seconds)]
    raise ValueError(measure)


def measured(pairs: Sequence[Pair], args: argparse.Namespace) -> dict[tuple[str, str], Any]:
    """Warm both sides up, then run their phases in turns; by name of pair and measure."""
    results: dict[tuple[str, str], tuple[Phases, Phases]] = defaultdict(lambda: ([], []))
    for pair in pairs:
        for way in (pair.without, pair.within):
            way.rate(clients=pair.clients, seconds=min(1.0, args.seconds))
    for number in tqdm(range(args.rounds), unit="round", disable=None):
        for pair in pairs:
            for measure in args.measure:
                if measure not in pair.measures:
                    continue
                for side in (0, 1) if number % 2 else (1, 0):
                    way = pair.within if side else pair.without
                    overloads = side and pair.overloads and measure == "busy"
                    done = "overloaded" if overloads else measure
                    with pair.meanwhile() if side else contextlib.nullcontext():
                        phase = run_phase(done, pair, way, args, seed=number)
                    results[pair.name, measure][side].append(phase)
                    time.sleep(args.rest)
    return dict(results)


def compared(
    without: Phases, within: Phases, *, quantile: float, seconds: bool
) -> tuple[float, float, float, float, float]:
    """A quantile of all phases of each side, the second side's gain, and 90 % of its resamples.

    Rounds are resampled with both sides together, so that other load on the machine affects both.
    """

    def of(phases: Sequence[Sequence[float]]) -> float:
        return float(np.quantile(np.concatenate(phases), quantile))

    def better(picks: Sequence[int]) -> float:
        first, second = (of([side[pick] for pick in picks]) for side in (without, within))
        return first / second if seconds else second / first

    draw = np.random.default_rng(20)
    rounds = len(without)
    drawn = [better(draw.integers(0, rounds, rounds).tolist()) for _ in range(400)]
    low, high = np.quantile(drawn, (0.05, 0.95))
    return of(without), of(within), better(range(rounds)), float(low), float(high)


def show(results: Mapping[tuple[str, str], tuple[Phases, Phases]]) -> float:
    """Print a line for each figure; return the worst ratio."""
    worst = float("inf")
    lines = [["", "without", "with", "ratio", "90 % of resamples"]]
    for (name, measure), phases in results.items():
        for quantile in QUANTILES.get(measure, (0.5,)):
            seconds = measure in QUANTILES
            without, within, ratio, low, high = compared(
                *phases, quantile=quantile, seconds=seconds
            )
            worst = min(worst, ratio)
            head = f"{name}, {measure}" + (f" p{100 * quantile:.0f}" if seconds else "")
            factor, unit = (1000, "ms") if seconds else (1, "/s")
            sides = (f"{factor * side:.2f} {unit}" for side in (without, within))
            lines.append([head, *sides, f"{ratio:.3f}", f"{low:.3f} to {high:.3f}"])
    print(align_columns(lines))
    return worst


def reloading(port: int, model: str, *, every: float) -> AbstractContextManager[None]:
    """Reload the model every few seconds, or without pause. Raises RuntimeError if rejected."""
    request = load_request(model, key=KEY)
    return repeated(lambda: checked(send(port, request, timeout=600)), every=lambda: every)


REQUESTS: Mapping[str, Mapping[str, tuple[int, int, Callable[..., bytes]]]] = {
    "segment": {"mask of 1 MP": (1, 1, lambda **named: mask_request(picture(), **named))},
    "sentiment": {
        "1 text": (1, 4, partial(text_request, TEXT)),
        "32 texts": (32, 2, partial(text_request, [TEXT] * 32)),
    },
}
"""By pipeline and name: pictures or texts of a request, clients for each predictor, the request."""


def task_pairs(
    repository: Path,
    without: Server,
    within: Server,
    *,
    only: str = "",
    groups: Sequence[str] = ("", ""),
) -> list[Pair]:
    """Pairs for each model with a task, or only for one.

    `groups` names an instance group for each side; the default groups answer without a name.
    """
    models, pairs = ModelRepository(repository), []
    for model in [only] if only else models.names():
        config = read_version(models, model, None).config
        count = config.group(config.default_group).count
        for name, (rows, clients, build) in REQUESTS.get(config.pipeline or "", {}).items():
            first, second = (
                HttpWay(server, build(model=model, predictor=group), rows)
                for server, group in zip((without, within), groups, strict=True)
            )
            pairs.append(
                Pair(name=name, without=first, within=second, clients=clients * count, model=model)
            )
    return pairs


@contextlib.contextmanager
def servers(
    args: argparse.Namespace, *, before: Path = ROOT, settings: Mapping[str, str] | None = None
) -> Iterator[list[Pair]]:
    """One server of the other checkout, or without the settings, and one with them."""
    with (
        running_server(args.repository, environment=PLAIN, checkout=before) as without,
        running_server(args.repository, environment=PLAIN | dict(settings or {})) as within,
    ):
        yield task_pairs(args.repository, without, within)
        for name, server in (("without", without), ("with", within)):
            print(f"memory {name}: {memory_of(server.pid) / 1e6:.0f} MB")


@contextlib.contextmanager
def group(args: argparse.Namespace) -> Iterator[list[Pair]]:
    with running_server(args.repository, environment=PLAIN) as server:
        yield task_pairs(args.repository, server, server, only=args.model, groups=args.groups)


def through(direct: Server, proxy: Server) -> list[Pair]:
    """Send requests of several sizes to both, for the group `onednn`."""
    requests = {
        "1 text": (text_request("今天天气真好", predictor="onednn"), 200),
        # It is read completely and rejected: only the transport differs.
        "a body of 1 MB": (mask_request(bytes(1_000_000)), 415),
        "a body of 10 MB": (mask_request(bytes(10_000_000)), 415),
        "mask of 1 MP": (mask_request(picture(), predictor="onednn"), 200),
    }
    return [
        Pair(
            name=name,
            without=HttpWay(direct, sent, status=status),
            within=HttpWay(proxy, sent, status=status),
        )
        for name, (sent, status) in requests.items()
    ]


@contextlib.contextmanager
def haproxy(_: argparse.Namespace) -> Iterator[list[Pair]]:
    with (
        tempfile.TemporaryDirectory() as directory,
        running_server() as server,
        balancer([server.port], Path(directory)) as proxy,
    ):
        yield through(server, proxy)


@contextlib.contextmanager
def ray(args: argparse.Namespace) -> Iterator[list[Pair]]:
    with (
        running_server() as server,
        ray_up("--cpus", "1", environment=INGRESSES[args.ingress]) as proxy,
    ):
        time.sleep(RAY_SECONDS)
        yield through(server, proxy)


@contextlib.contextmanager
def overload(args: argparse.Namespace) -> Iterator[list[Pair]]:
    """As many clients as keep the predictors busy, and three times the capacity."""
    with running_server(args.repository, environment=PLAIN) as server:
        before = memory_of(server.pid)
        pairs = [
            replace(pair, overloads=True)
            for pair in task_pairs(args.repository, server, server)
            if pair.name != "1 text"  # the cost of the client would be measured
        ]
        yield pairs
        for pair in pairs:
            if pair.refusals:
                soon, late = np.quantile(pair.refusals, (0.5, 0.99))
                print(f"{pair.name}: refused within {1000 * soon:.0f} ms, p99 {1000 * late:.0f} ms")
        now = memory_of(server.pid)
        print(f"memory: {now / 1e6:.0f} MB, before the load {before / 1e6:.0f} MB")


@contextlib.contextmanager
def reload(args: argparse.Namespace) -> Iterator[list[Pair]]:
    """Reload a model every few seconds."""
    with running_server(args.repository, environment=PLAIN) as server:
        yield [
            replace(pair, meanwhile=lambda: reloading(server.port, args.model, every=args.every))
            for pair in task_pairs(args.repository, server, server, only=args.model)
            if pair.within.units == 1
        ]


@contextlib.contextmanager
def canary(args: argparse.Namespace) -> Iterator[list[Pair]]:
    """The version before a model's newest, alone, and with the newest on trial beside it."""
    newest, *_ = ModelRepository(args.repository).versions(args.model)
    with tempfile.TemporaryDirectory() as directory:
        alone, beside = (Path(directory) / name / args.model for name in ("alone", "beside"))
        for model in (alone, beside):
            shutil.copytree(args.repository / args.model, model)
        shutil.rmtree(alone / str(newest))
        policy = {"kind": "canary", "requests": NEVER, "agreement": 0.5, "slice_agreement": 0.01}
        document = tomlkit.parse((beside / "config.toml").read_text("utf-8"))
        document["version_policy"] = {**policy, "slower": 10.0}
        (beside / "config.toml").write_text(tomlkit.dumps(document), "utf-8")
        settings = PLAIN | {"PADDLEPOOL_PROVE_GROUPS": "off"}
        with (
            running_server(alone.parent, environment=settings) as without,
            running_server(beside.parent, environment=settings) as within,
        ):
            pairs = task_pairs(beside.parent, without, within)
            yield [pair for pair in pairs if pair.within.units == 1]
            path = f"/v2/repository/models/{args.model}/canary"
            reply = send(within.port, request("GET", path, headers={"X-Api-Key": KEY}))
            status = json.loads(checked(reply).body)
            print(f"{status['state']}: {status['compared']} requests compared")


@contextlib.contextmanager
def api(args: argparse.Namespace) -> Iterator[list[Pair]]:
    """Send requests without work, and texts, to this server and to the others.

    They answer texts with the same int8 program, with as many predictors as there are cores.
    FastAPI checks the request and replies with constant labels.
    """
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        version = int8_version(repository := Path(directory))
        current = stack.enter_context(running_server(repository))
        text, live = text_request(TEXT), request("GET", LIVE)
        port = free_port()
        application = "loadtest.peer_programs.fastapi_peer:app"
        bare = [sys.executable, "-m", "uvicorn", "--no-access-log", "--port", port, application]
        fastapi = stack.enter_context(running_program(bare, port, path=LIVE))
        compared = [
            ("live, FastAPI", fastapi, live, live),
            ("text, FastAPI", fastapi, text, text),
        ]
        if args.before is not None:
            before = stack.enter_context(running_server(repository, checkout=args.before))
            compared += [("text", before, text, text), ("live", before, live, live)]
        if args.probe is not None:
            port, predictors = free_port(), max(1, int(available_cores()))
            files = [version / "int8.onnx", version / "tokenizer.json"]
            options = ["--port", port, "--predictors", predictors]
            command = [sys.executable, args.probe, *files, *options]
            program = running_program(command, port, path="/openapi.json")
            payload = json_request("/sentiment", {"text": TEXT})
            compared.append(("probe", stack.enter_context(program), payload, text))
        yield [
            Pair(
                name=f"{name} × {clients}",
                without=HttpWay(server, peer_request),
                within=HttpWay(current, own_request),
                clients=clients,
                measures=("one client" if clients == 1 else "busy", "processor"),
            )
            for name, server, peer_request, own_request in compared
            for clients in (1, 8, 32)
        ]


def int8_version(repository: Path) -> Path:
    """Copy the emotion model, with int8 as its default, to `repository`; return the version."""
    shutil.copytree(ROOT / "model_repo" / "emotion", repository / "emotion")
    file = repository / "emotion" / "config.toml"
    config = tomlkit.parse(file.read_text("utf-8")).unwrap()
    [group] = [group for group in config["instance_group"] if group["name"] == INT8_GROUP]
    del group["start"]
    group["count"] = "cores"
    config["default_group"] = INT8_GROUP
    file.write_text(tomlkit.dumps(config), "utf-8")
    return read_version(ModelRepository(repository), "emotion", None).directory


MODES = {
    "checkout": Mode(
        lambda args: servers(args, before=args.other),
        ("one client", "busy", "overloaded", "reloaded"),
        least=0.97,
        options={"other": {"type": Path, "help": "the checkout to compare with, with its .venv"}},
    ),
    "setting": Mode(
        lambda args: servers(args, settings=dict(pair.split("=", 1) for pair in args.settings)),
        ("one client", "busy"),
        options={"settings": {"nargs": "+", "metavar": "NAME=VALUE"}},
    ),
    "group": Mode(
        group,
        ("one client", "busy"),
        options={"model": {}, "groups": {"nargs": 2, "metavar": "GROUP"}},
    ),
    "api": Mode(
        api,
        ("one client", "busy", "processor"),
        seconds=3.0,
        options={
            "--before": {"type": Path, "help": "another checkout, with its .venv"},
            "--probe": {"type": Path, "help": "a program that answers texts"},
        },
    ),
    # One request at a time: a busy machine would add more than the transport does.
    "haproxy": Mode(haproxy, ("one client",), seconds=0.0, rounds=60),
    "ray": Mode(
        ray,
        ("one client",),
        seconds=0.0,
        rounds=60,
        options={"--ingress": {"choices": [*INGRESSES], "default": "HAProxy"}},
    ),
    "overload": Mode(overload, ("busy",), seconds=20.0, rounds=3, least=0.9),
    "canary": Mode(
        canary, ("users",), seconds=10.0, rounds=6, options={"--model": {"default": "emotion"}}
    ),
    "reload": Mode(
        reload,
        ("users",),
        seconds=20.0,
        rounds=8,
        least=0.9,
        options={
            "--model": {"default": "emotion"},
            "--every": {"type": float, "default": 20.0, "help": "seconds; 0: no pause"},
        },
    ),
}


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    modes = parser.add_subparsers(dest="mode", required=True)
    for name, mode in MODES.items():
        command = modes.add_parser(name)
        for option, more in mode.options.items():
            command.add_argument(option, **more)
        if name not in ("api", "haproxy", "ray"):  # which serve what they need
            command.add_argument("--repository", type=Path, default=ROOT / "model_repo")
        command.add_argument("--seconds", type=float, default=mode.seconds, help="of a phase")
        command.add_argument("--rounds", type=int, default=mode.rounds, help="pairs of phases")
        command.add_argument("--rest", type=float, default=0.0, help="seconds between phases")
        command.add_argument("--measure", nargs="+", choices=MEASURES, default=mode.measures)
        command.add_argument("--least", type=float, default=mode.least, help="ratio, else exit 1")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    args = parsed(arguments)
    with MODES[args.mode].open(args) as pairs:
        results = measured(pairs, args)
    return 0 if show(results) >= args.least else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
