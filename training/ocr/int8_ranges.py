"""The activation ranges by which the official recogniser of PP-OCRv5 mobile becomes int8.

    python -m training.ocr.int8_ranges --data ../shared/data/ocr --repository REPOSITORY

Measures them on lines of pictures that are no receipts, and on lines drawn with the fonts of this
machine. Then measures on the receipts what the int8 program loses, and writes
app/paddlepool/making/programs/ranges/pp-ocrv5-mobile-rec.json.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import onnxruntime
import openvino
from numpy.typing import NDArray
from onnx import helper
from PIL import Image, ImageDraw, ImageFont

from paddlepool.making.export.publish import versions_of
from paddlepool.making.programs.affine import fold_affine
from paddlepool.making.programs.derive import named_graph
from paddlepool.making.programs.onnx_graph import Graph
from paddlepool.making.programs.padded_classes import pad_classes
from paddlepool.making.programs.qdq import (
    Activation,
    Ranges,
    quantised,
)
from paddlepool.making.programs.shipped import DIRECTORY, PARSER, ShippedRanges
from paddlepool.models.repository.layout import ModelRepository
from paddlepool.models.repository.manifest import Calibration, Derivation, MeasuredLoss
from paddlepool.tasks.ocr.crops import crop_of, line_tensors
from paddlepool.tasks.ocr.evaluation import characters
from paddlepool.tasks.ocr.reader import LEAST_MARGIN, padded, read_texts
from paddlepool.tasks.transforms.config import InferenceConfig, inference_config
from paddlepool.tasks.transforms.labels import characters_of
from paddlepool.tasks.transforms.stages import prepare

MODEL = "pp-ocrv5-mobile-rec"
WHOLE = (*(f"conv2d_{number}" for number in range(145, 156, 2)), "linear_8")
"""Layers whose input gets one scale for its whole range. The four layers before them lose too much
and take a tenth of the time."""
BY_CHANNEL = tuple(f"conv2d_{number}" for number in range(157, 164, 2))
"""Layers whose input has channels of very different size: Activation.factors."""
PERCENTILE = 99
"""Share of the lines, in percent, whose values a channel's range contains."""
DRAWN = 400
SEED = 20
FONTS = Path("/usr/share/fonts")
WORDS = (
    "the of and to in is you that it he was for on are as with his they at be this have from or "
    "one had by word but not what all were we when your can said there use an each which she do "
    "TOTAL CASH CHANGE INVOICE DATE TAX AMOUNT QTY PRICE"
)
HAN = (
    "的一是在不了有和人这中大为上个国我以要他时来用们生到作地于出就分对成会可主发年动同工也能下过子说产种"
    "面而方后多定行学法所民得经十三之进着等部度家电力里如水化高自二理起小物现实加量都两体制机当使点从业本去"
)

Tensor = NDArray[np.float32]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder as in docs/ocr.md")
    parser.add_argument("--repository", type=Path, default=Path("model_repo"))
    args = parser.parse_args()
    repository = ModelRepository(args.repository.resolve())
    files = repository.read(MODEL, repository.versions(MODEL)[0])
    config = inference_config(files.info())
    if config is None:
        raise SystemExit(f"{files.directory} has no inference.yml")
    reference = named_graph(files)
    model = fold_affine(reference)
    truth = json.loads((args.data / "receipts_truth.json").read_text("utf-8"))
    lines = list(cut_lines(args.data, config))
    samples = [tensor for name, tensor in lines if name not in truth]
    samples += drawn_lines(config)
    receipts = [(name, tensor) for name, tensor in lines if name in truth]
    ranges = measured(model, samples)
    small = quantised(pad_classes(model), ranges)
    digests = sorted(hashlib.sha256(sample.tobytes()).hexdigest() for sample in samples)
    written = ShippedRanges(
        weights_sha256=str(files.manifest.weights["sha256"]),
        derivation=Derivation(
            tool="minima and maxima of lines, put into a graph without affine operators",
            versions=versions_of(("onnx", "onnxruntime", "openvino")),
            settings={"percentile": PERCENTILE, "per_channel": True},
            float_layers=ranges.float_layers,
        ),
        calibration=Calibration(
            data="lines of pictures that are no receipts, and drawn lines",
            count=len(samples),
            sha256=hashlib.sha256("".join(digests).encode()).hexdigest(),
        ),
        quality=(loss(reference, small, receipts, truth, config),),
        ranges=ranges,
        sealed=True,
    )
    target = DIRECTORY / f"{MODEL}.json"
    target.write_bytes(PARSER.dump_json(written) + b"\n")
    print(f"{target}: {len(ranges.activations)} ranges; {written.quality[0].figures}")


def cut_lines(data: Path, config: InferenceConfig) -> Iterator[tuple[str, Tensor]]:
    """Yield the picture's name and the recogniser's input for each line that PaddleX found."""
    reference = json.loads((data / "reference.json").read_text("utf-8"))
    for name, entries in reference.items():
        picture = cv2.cvtColor(cv2.imread(str(data / "images" / name)), cv2.COLOR_BGR2RGB)
        for entry in entries:
            box = np.array(entry["box"], np.int32).reshape(1, 4, 2)
            widths = padded(np.array([crop_of(box[0]).input_width(48, 0)]), "steps")
            [tensor] = line_tensors(
                picture, box, widths.tolist(), config.as_meta(), tall=48, margin=LEAST_MARGIN
            ).values()
            yield name, tensor


def drawn_lines(config: InferenceConfig) -> list[Tensor]:
    """Return DRAWN lines of words, numbers or Han characters, with noise, blur and JPEG losses."""
    choose = random.Random(SEED)  # noqa: S311  not for security
    noise, words = np.random.default_rng(SEED), WORDS.split()
    fonts = sorted(FONTS.rglob("*.[to]t[fc]"))
    lines: list[Tensor] = []
    while len(lines) < DRAWN:
        kind = choose.random()
        if kind < 0.6:
            text = " ".join(choose.choice(words) for _ in range(choose.randint(1, 7)))
            text = choose.choice((text, text.upper(), text.title()))
        elif kind < 0.8:
            text = "".join(choose.choice("0123456789.,-/:") for _ in range(choose.randint(2, 16)))
        else:
            text = "".join(choose.choice(HAN) for _ in range(choose.randint(2, 16)))
        fitting = [path for path in fonts if text.isascii() or "CJK" in path.name]
        size = choose.randint(12, 72)
        font = ImageFont.truetype(str(choose.choice(fitting)), size)
        left, top, right, bottom = (round(side) for side in font.getbbox(text))
        pad = choose.randint(0, size // 4)
        paper = choose.randint(120, 255)
        colours = [paper, choose.randint(0, paper - 60)]
        if choose.random() < 0.15:
            colours.reverse()
        image = Image.new("L", (right - left + 2 * pad, bottom - top + 2 * pad), colours[0])
        ImageDraw.Draw(image).text((pad - left, pad - top), text, colours[1], font)
        pixels = np.repeat(np.asarray(image, np.float32)[..., None], 3, axis=2)
        if choose.random() < 0.5:
            pixels = cv2.GaussianBlur(pixels, (0, 0), choose.uniform(0.3, size / 20))
        pixels += noise.normal(0, choose.choice((0, 2, 6, 12)), pixels.shape).astype(np.float32)
        pixels += noise.normal(0, 15, 3).astype(np.float32)
        options = [cv2.IMWRITE_JPEG_QUALITY, choose.randint(25, 95)]
        jpeg = cv2.imencode(".jpg", pixels.clip(0, 255).astype(np.uint8), options)[1]
        line = prepare(cv2.imdecode(jpeg, cv2.IMREAD_COLOR), config.as_meta())
        height, wide = pixels.shape[:2]
        [width] = padded(np.array([int(48 * wide / height)]), "steps").tolist()
        tensor = np.zeros((1, 3, 48, width), np.float32)
        tensor[..., : line.shape[3]] = line[..., :width]
        lines.append(tensor)
    return lines


def measured(model: onnx.ModelProto, samples: Sequence[Tensor]) -> Ranges:
    """Return ranges for the layers WHOLE and BY_CHANNEL; all other layers stay float."""
    graph = Graph(model)
    layers = {layer.name: (layer, weight) for layer, weight in graph.layers()}
    small = (*WHOLE, *BY_CHANNEL)
    extremes = extremes_of(model, [layers[name][0].input[0] for name in small], samples)
    activations = []
    for name in small:
        layer, weight = layers[name]
        low, high = extremes[layer.input[0]]
        factors: tuple[float, ...] = ()
        if name in BY_CHANNEL:
            low = np.percentile(low, 100 - PERCENTILE, axis=0)
            high = np.percentile(high, PERCENTILE, axis=0)
            # The mean of what would serve the activations best, and the weights.
            sizes = np.abs(graph.constants[weight]).max(axis=(0, 2, 3))
            scales = np.sqrt(np.maximum(sizes, 1e-6) / np.maximum(high - np.minimum(low, 0), 1e-3))
            factors = tuple(float(f"{factor:.3g}") for factor in scales / np.median(scales))
        low, high = (extreme * (factors or 1) for extreme in (low, high))
        lowest = min(0.0, float(low.min()))
        scale = float(f"{(float(high.max()) - lowest) / 255:.6g}")
        activations.append(
            Activation(
                value=layer.input[0],
                scale=scale,
                zero_point=round(-lowest / scale),
                signed=False,
                readers=(name,),
                factors=factors,
            )
        )
    floats = tuple(name for name in layers if name not in small)
    return Ranges(activations=tuple(activations), float_layers=floats)


def extremes_of(
    model: onnx.ModelProto, values: Sequence[str], samples: Sequence[Tensor]
) -> Mapping[str, tuple[NDArray[Any], NDArray[Any]]]:
    """Return the minima and maxima of each value, both (samples, channels)."""
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    del probe.graph.output[:]
    probe.graph.output.extend(helper.make_empty_tensor_value_info(value) for value in values)
    session = onnxruntime.InferenceSession(probe.SerializeToString())
    [entry] = session.get_inputs()
    extremes: dict[str, tuple[list[Any], list[Any]]] = {value: ([], []) for value in values}
    for sample in samples:
        for value, array in zip(values, session.run(None, {entry.name: sample}), strict=True):
            axes = (0, 2, 3) if array.ndim == 4 else (0, 1)
            for side, extreme in zip(extremes[value], (array.min, array.max), strict=True):
                side.append(extreme(axis=axes))
    return {value: (np.array(low), np.array(high)) for value, (low, high) in extremes.items()}


def loss(
    reference: onnx.ModelProto,
    small: onnx.ModelProto,
    lines: Sequence[tuple[str, Tensor]],
    truth: Mapping[str, Any],
    config: InferenceConfig,
) -> MeasuredLoss:
    """Measure the share of the receipts' characters that only the reference reads."""
    names = characters_of(config.postprocess.model_dump()["character_dict"])
    known = {
        name: characters(entry["text"] for entry in entries) for name, entries in truth.items()
    }
    figures = []
    for model, precision in ((reference, "f32"), (small, "bf16")):
        options = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": 1}
        run = openvino.compile_model(
            openvino.Core().read_model(model.SerializeToString()), "CPU", options
        )
        texts: dict[str, list[str]] = {name: [] for name in truth}
        for name, tensor in lines:
            outputs = run(tensor)
            arrays = {str(place): outputs[place] for place in range(len(outputs))}
            texts[name] += [text.text for text in read_texts([arrays], names)]
        read = {name: characters(page) for name, page in texts.items()}
        found = sum((known[name] & read[name]).total() for name in truth)
        figures.append(
            (
                found / sum(page.total() for page in known.values()),
                found / sum(page.total() for page in read.values()),
            )
        )
    before, after = figures
    return MeasuredLoss(
        data="lines of 29 receipts",
        count=len(lines),
        figures={
            "characters found": round(after[0], 5),
            "loss of characters found": round(before[0] - after[0], 5),
            "precision": round(after[1], 5),
            "loss of precision": round(before[1] - after[1], 5),
        },
    )


if __name__ == "__main__":
    main()
