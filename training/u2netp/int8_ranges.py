"""The activation ranges by which the official U²-Netp weights become int8, measured on pictures.

    python -m training.u2netp.int8_ranges --data ../shared/data/sod_train --version 2

Needs the extra `quantize`. Calibrates on 400 pictures of the training part, measures what the int8
program loses on the validation part, which is every tenth picture, and writes
app/paddlepool/making/programs/ranges/u2netp.json.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import cv2
import numpy as np
import onnx
import openvino
from numpy.typing import NDArray

from paddlepool.making.export.publish import versions_of
from paddlepool.making.programs.derive import named_graph
from paddlepool.making.programs.qdq import (
    PRESET,
    TOOLS,
    chosen,
    digest_of,
    measure_ranges,
    quantised,
)
from paddlepool.making.programs.rewrite import rewritten
from paddlepool.making.programs.shipped import DIRECTORY, PARSER, ShippedRanges
from paddlepool.models.repository.layout import ModelRepository
from paddlepool.models.repository.manifest import Calibration, Derivation, MeasuredLoss
from paddlepool.tasks.codecs.decode import decode
from paddlepool.tasks.codecs.limits import PictureLimits
from paddlepool.tasks.codecs.picture import Floats, opaque
from paddlepool.tasks.segment import evaluation, matte

SIDE = 320
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
EVERY = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with images/ and masks/")
    parser.add_argument("--repository", type=Path, default=Path("model_repo"))
    parser.add_argument("--version", type=int, required=True, help="that of the official weights")
    parser.add_argument("--samples", type=int, default=400)
    args = parser.parse_args()
    files = ModelRepository(args.repository.resolve()).read("u2netp", args.version)
    manifest, reference = files.manifest, named_graph(files)
    arranged = rewritten(reference, approximate=True)
    model = arranged.model
    pictures = sorted((args.data / "images").glob("*.jpg"))
    held_out = pictures[::EVERY]
    samples = chosen([path for path in pictures if path not in set(held_out)], args.samples)
    ranges = measure_ranges(
        model, [{manifest.inputs[0].name: network_input(path)} for path in samples],
        float_nodes=arranged.float_nodes,
    )  # fmt: skip
    small = quantised(model, ranges)
    written = ShippedRanges(
        weights_sha256=str(manifest.weights["sha256"]),
        derivation=Derivation(
            tool="NNCF's ranges, put into an approximated graph",
            versions=versions_of(TOOLS),
            settings={"preset": PRESET, "bias_correction": False, "per_channel": True},
            float_layers=ranges.float_layers,
        ),
        calibration=Calibration(
            data="sod_train without every tenth pair", count=len(samples), sha256=digest_of(samples)
        ),
        quality=(loss(reference, small, held_out, args.data / "masks"),),
        ranges=ranges,
    )
    target = DIRECTORY / "u2netp.json"
    target.write_bytes(PARSER.dump_json(written, indent=1) + b"\n")
    print(f"{target}: {len(ranges.activations)} ranges; {written.quality[0].figures}")


def network_input(path: Path) -> NDArray[np.float32]:
    pixels = opaque(decode(path.read_bytes(), PictureLimits()))
    return matte.network_input(pixels, SIDE, MEAN, STD)


def loss(
    reference: onnx.ModelProto, small: onnx.ModelProto, files: list[Path], truths: Path
) -> MeasuredLoss:
    core = openvino.Core()
    options = {"INFERENCE_PRECISION_HINT": "f32", "ENABLE_CPU_PINNING": False}
    runs = [
        core.compile_model(core.read_model(model.SerializeToString()), "CPU", options)
        for model in (reference, small)
    ]
    mattes: list[list[Floats]] = [[], []]
    for path in files:
        for run, maps in zip(runs, mattes, strict=True):
            maps.append(matte.normalise(run(network_input(path))[0][0, 0].copy()))
    wanted = [
        cv2.resize(cv2.imread(str(truths / f"{path.stem}.png"), 0), (SIDE, SIDE)) for path in files
    ]
    before, after = (evaluation.measure(maps, wanted) for maps in mattes)
    moved = [float(np.abs(a - b).mean()) for a, b in zip(*mattes, strict=True)]
    figures = {
        "IoU loss": before.iou - after.iou,
        "MAE loss": after.mae - before.mae,
        "mean mask difference": float(np.mean(moved)),
    }
    return MeasuredLoss(
        data="every tenth pair of sod_train",
        count=len(files),
        figures={name: round(value, 5) for name, value in figures.items()},
    )


if __name__ == "__main__":
    main()
