"""Measure reading text on this server, PaddleX's basic serving and loops of RapidOCR.

`peers.py --task ocr` runs it. All read the same JPEGs with the official PP-OCRv5 mobile models: the
detector at most 960 pixels a side, no orientation, no pictures in the reply. The two servers get
the same requests. This server has chosen its groups, or has those of `groups`. RapidOCR has one
loop per core with one thread each, and no server. All have the same priority, and take turns in one
run. PaddleX and ONNX Runtime compute in float32; OpenVINO, by default, in bfloat16 if the processor
can, in RapidOCR as well.

Both peers are installed once, into environments of their own below `environments`.
"""

import base64
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import tomlkit
import yaml
from cases import CHOOSING_SECONDS
from harness import (
    Connection,
    Server,
    free_port,
    json_request,
    request,
    running_program,
    running_server,
    send,
    wait_until,
)
from load_clients import checked
from pages import digits, markdown_table

from paddlepool.cli.paddlex import import_source
from paddlepool.cli.pull import OCR_WHEEL
from paddlepool.engine.backends.handler import onnx_bytes
from paddlepool.engine.backends.process import NICE
from paddlepool.making.export.unpack import opened_source
from paddlepool.observability.build_info import describe_machine

PROGRAMS = Path(__file__).resolve().parent / "peer_programs"
PACKAGES = {
    "paddlex-ocr-3.7.2": ("paddlex[ocr-core,serving]==3.7.2", "paddlepaddle==3.2.2"),
    "rapidocr-3.10.0": ("rapidocr==3.10.0", "onnxruntime", "openvino"),
}
DETECTOR, RECOGNISER = "PP-OCRv5_mobile_det", "PP-OCRv5_mobile_rec"
ENGINES = ("onnxruntime", "openvino")
CLIENTS = 4
EVERY = 4
"""Every fourth picture of the folder is read."""
OPTIONS = {
    "fileType": 1,
    "visualize": False,
    "useDocOrientationClassify": False,
    "useDocUnwarping": False,
    "useTextlineOrientation": False,
    "textDetLimitSideLen": 960,
    "textDetLimitType": "max",
}
START_SECONDS = 180.0
TIMEOUT_SECONDS = 60.0
SERVER_TIMEOUT_MS = 30_000

Ways = dict[str, Callable[[float], tuple[float, float]]]
Rounds = list[tuple[float, float]]
"""What runs a round of these seconds, and its results: pages a second of several clients, and the
median seconds of one."""


@dataclass(frozen=True, slots=True)
class Pages:
    """A server that reads the pages of these requests in turn."""

    server: Server
    requests: Sequence[bytes]

    def lines(self) -> int:
        """Send each request once, and return the number of lines that were read."""
        replies = [
            checked(send(self.server.port, r, timeout=TIMEOUT_SECONDS)) for r in self.requests
        ]
        results = [json.loads(reply.body)["result"]["ocrResults"] for reply in replies]
        return sum(len(result[0]["prunedResult"]["rec_texts"]) for result in results)

    def round(self, seconds: float) -> tuple[float, float]:
        one = statistics.median(self._client(self.requests, seconds=0))
        began, turns = time.perf_counter(), len(self.requests) // CLIENTS
        starts = [number * turns for number in range(CLIENTS)]
        ordered = [[*self.requests[start:], *self.requests[:start]] for start in starts]
        with ThreadPoolExecutor(CLIENTS) as threads:
            clients = threads.map(lambda pages: self._client(pages, seconds=seconds), ordered)
            done = sum(map(len, clients))
        return done / (time.perf_counter() - began), one

    def _client(self, requests: Sequence[bytes], *, seconds: float) -> list[float]:
        """Send for this time, or each request once if it is 0; return the seconds of each."""
        began, latencies = time.perf_counter(), []
        pages = cycle(requests) if seconds else iter(requests)
        with contextlib.closing(Connection(self.server.port)) as connection:
            for page in pages:
                latencies.append(checked(connection.send(page)).seconds)
                if seconds and time.perf_counter() - began > seconds:
                    break
        return latencies


@dataclass(frozen=True, slots=True)
class Loops:
    """Processes of rapidocr_loop.py."""

    processes: Sequence[subprocess.Popen[str]]

    def round(self, seconds: float) -> tuple[float, float]:
        one = _answers(self.processes[:1], seconds)[0]
        began = time.perf_counter()
        pages = sum(map(len, _answers(self.processes, seconds)))
        return pages / (time.perf_counter() - began), statistics.median(one)


def _answers(processes: Sequence[subprocess.Popen[str]], seconds: float) -> list[list[float]]:
    for process in processes:
        if process.stdin:
            process.stdin.write(f"{seconds}\n")
            process.stdin.flush()
    return [json.loads(_line(process)) for process in processes]


def _line(process: subprocess.Popen[str]) -> str:
    return process.stdout.readline() if process.stdout else ""


@contextlib.contextmanager
def loops(python: Path, engine: str, models: Path, pictures: Sequence[Path]) -> Iterator[Loops]:
    """Run a loop per core. Raises RuntimeError if one does not start."""
    with contextlib.ExitStack() as stack:
        processes = []
        command = ["nice", "-n", NICE, python, PROGRAMS / "rapidocr_loop.py", engine, models]
        for _ in os.sched_getaffinity(0):
            process = subprocess.Popen(
                [*map(str, command), *map(str, pictures)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )
            stack.enter_context(process)
            stack.callback(process.terminate)
            processes.append(process)
        for process in processes:
            answer = _line(process)
            if not answer.startswith("ready"):
                raise RuntimeError(f"RapidOCR with {engine} did not start: {answer}")
            print(f"RapidOCR, {engine}: {answer.split()[1]} lines", file=sys.stderr)
        yield Loops(processes)


def install(environments: Path, name: str) -> Path:
    """Return the bin directory of an environment; install it unless it is there."""
    environment = environments / name
    if not (environment / "installed").exists():
        print(f"installing {PACKAGES[name][0]} into {environment}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
        pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, *PACKAGES[name]], check=True)
        (environment / "installed").touch()
    return environment / "bin"


def wait_parts_chosen(server: Server) -> dict[str, str]:
    """Wait until the group of each part is chosen, and return them. Raises RuntimeError."""

    def chosen() -> dict[str, str]:
        models = json.loads(send(server.port, request("GET", "/info")).body)["models"]
        choices = {model["name"]: model["choice"] for model in models if model["choice"]}
        decided = choices and all(choice["by"] != "start" for choice in choices.values())
        return {name: choice["group"] for name, choice in choices.items()} if decided else {}

    return wait_until(chosen, "not every group is chosen", timeout=CHOOSING_SECONDS, every=1.0)


def pipeline_of(models: Mapping[str, Path]) -> dict[str, Any]:
    """Return PaddleX's description of the pipeline OCR with these models and its own settings."""
    detection = {"module_name": "text_detection", "model_name": DETECTOR}
    detection |= {"model_dir": str(models[DETECTOR])}
    limits = {"limit_side_len": 960, "limit_type": "max", "max_side_limit": 4000}
    boxes = {"thresh": 0.3, "box_thresh": 0.6, "unclip_ratio": 1.5}
    recognition = {"module_name": "text_recognition", "model_name": RECOGNISER, "batch_size": 6}
    recognition |= {"model_dir": str(models[RECOGNISER]), "score_thresh": 0.0}
    return {
        "pipeline_name": "OCR",
        "text_type": "general",
        "use_doc_preprocessor": False,
        "use_textline_orientation": False,
        "SubModules": {
            "TextDetection": {**detection, **limits, **boxes},
            "TextRecognition": recognition,
        },
    }


def write_onnx(models: Mapping[str, Path], directory: Path) -> None:
    """Write what RapidOCR opens: both models as ONNX, and the characters."""
    for name, file in ((DETECTOR, "det.onnx"), (RECOGNISER, "rec.onnx")):
        opening = {"directory": str(models[name]), "program": "inference.json"}
        opening |= {"params": "inference.pdiparams"}
        (directory / file).write_bytes(onnx_bytes(opening))
    described = yaml.safe_load((models[RECOGNISER] / "inference.yml").read_text("utf-8"))
    characters = described["PostProcess"]["character_dict"]
    (directory / "keys.txt").write_text("".join(f"{c}\n" for c in characters), "utf-8")


def serve_groups(repository: Path, groups: str) -> None:
    """Make each group the default of its part, with a process for each core."""
    parts = tomlkit.parse((repository / "ocr" / "config.toml").read_text("utf-8"))["parts"]
    for part, _, name in (group.partition(":") for group in groups.split(",")):
        path = repository / parts[part] / "config.toml"
        config = tomlkit.parse(path.read_text("utf-8"))
        config["default_group"] = name
        for group in config["instance_group"]:
            if group["name"] == name:
                group["count"] = "cores"
                group.pop("start", None)
        path.write_text(tomlkit.dumps(config), "utf-8")


@contextlib.contextmanager
def contenders(
    data: Path, environments: Path, directory: Path, *, source: str, groups: str
) -> Iterator[Ways]:
    """Start all of them, this server first; yield the function of each that runs a round."""
    pictures = sorted((data / "images").glob("*.jpg"))[::EVERY]
    bodies = [base64.b64encode(picture.read_bytes()).decode() for picture in pictures]
    requests = [json_request("/ocr", {"file": body, **OPTIONS}) for body in bodies]
    with contextlib.ExitStack() as stack:
        opened = stack.enter_context(opened_source(source, timeout=TIMEOUT_SECONDS))
        models = {path.parent.name: path.parent for path in opened.root.rglob("inference.yml")}
        repository = directory / "repository"
        for _ in import_source(str(opened.root), repository, timeout=TIMEOUT_SECONDS):
            pass
        if groups:
            serve_groups(repository, groups)
        settings = {"PADDLEPOOL_PROVE_GROUPS": "off" if groups else "started"}
        own = stack.enter_context(running_server(repository, environment=settings))
        print(f"groups: {groups or wait_parts_chosen(own)}", file=sys.stderr)
        bin = install(environments, "paddlex-ocr-3.7.2")
        (directory / "pipeline.yaml").write_text(yaml.safe_dump(pipeline_of(models)), "utf-8")
        port = free_port()
        command = ["nice", "-n", NICE, bin / "python", "-m", "paddlex", "--serve", "--pipeline"]
        command += [directory / "pipeline.yaml", "--device", "cpu", "--host", "127.0.0.1"]
        paddlex = stack.enter_context(
            running_program(
                [*command, "--port", port],
                port,
                path="/health",
                environment={"PADDLE_PDX_DISABLE_MODEL_SOURCE_CHECK": "True"},
                timeout=START_SECONDS,
            )
        )
        path = f"/ocr?timeout_ms={SERVER_TIMEOUT_MS}"
        served = [json_request(path, {"file": body, **OPTIONS}) for body in bodies]
        ways = {"Paddlepool": Pages(own, served), "PaddleX 3.7.2": Pages(paddlex, requests)}
        for name, pages in ways.items():
            print(f"{name}: {pages.lines()} lines of {len(requests)} pages", file=sys.stderr)
        rounds: Ways = {name: pages.round for name, pages in ways.items()}
        write_onnx(models, directory)
        python = install(environments, "rapidocr-3.10.0") / "python"
        for engine in ENGINES:
            loop = stack.enter_context(loops(python, engine, directory, pictures))
            rounds[f"RapidOCR 3.10, {engine}"] = loop.round
        yield rounds


def run(
    data: Path,
    environments: Path,
    *,
    rounds: int,
    seconds: float,
    groups: str = "",
    source: str = f"pypi:{OCR_WHEEL.requirement}",
) -> None:
    """Measure all contenders in turns, and print their table."""
    with (
        tempfile.TemporaryDirectory() as directory,
        contenders(data, environments, Path(directory), source=source, groups=groups) as ways,
    ):
        figures: dict[str, Rounds] = {name: [] for name in ways}
        for number in range(rounds):
            for name in list(ways) if number % 2 == 0 else list(ways)[::-1]:
                figures[name].append(ways[name](seconds))
    print(f"{CLIENTS} clients; {describe_machine(cores=len(os.sched_getaffinity(0)))}; ", end="")
    print(f"load {os.getloadavg()[0]:.1f}\n")
    print(table(figures))


def table(figures: Mapping[str, Rounds]) -> str:
    """A table of medians; ratios are those of the first contender to each, by round."""
    first = next(iter(figures.values()))
    rows = []
    for name, rounds in figures.items():
        cells = [name]
        for axis, factor in ((0, 1), (1, 1000)):
            ratios = [own[axis] / other[axis] for own, other in zip(first, rounds, strict=True)]
            cells.append(digits(factor * statistics.median(value[axis] for value in rounds)))
            low, middle, high = min(ratios), statistics.median(ratios), max(ratios)
            cells.append(f"{digits(middle)} ({digits(low)}–{digits(high)})")
        rows.append(cells)
    heads = ["", "pages/s", "Paddlepool's ratio", "one client, p50 ms", "Paddlepool's ratio"]
    return markdown_table(heads, rows)
