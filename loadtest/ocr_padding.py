"""Print how many characters a recogniser reads when lines are padded to widths by several rules.

    .venv/bin/python loadtest/ocr_padding.py ../shared/data/ocr REPOSITORY/pp-ocrv5-mobile-rec/1

The lines are those that PaddleX found in the receipts (`reference.json`), cut as the server cuts
them. OpenVINO reads them one at a time with one thread. "Found" and "precision" are those of
ocr_quality.py; "changed" counts the lines whose text is not that of the first rule.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import openvino
from numpy.typing import NDArray
from ocr_quality import lines_of
from pages import markdown_table
from tqdm import tqdm

from paddlepool.engine.backends.handler import onnx_bytes
from paddlepool.tasks.codecs.picture import Pixels
from paddlepool.tasks.ocr.crops import crop_of, line_tensors
from paddlepool.tasks.ocr.evaluation import characters
from paddlepool.tasks.ocr.reader import LEAST_MARGIN, padded, read_texts
from paddlepool.tasks.transforms.config import FILE, read_inference_config
from paddlepool.tasks.transforms.labels import characters_of

Rule = Callable[[int], int]


def steps(step: int, *, margin: int = 0, least: int = 0) -> Rule:
    return lambda width: -(-max(width + margin, least) // step) * step


def served(width: int) -> int:
    """Also for lines that the server squeezes."""
    return int(padded(np.array([width]), "steps")[0])


RULES: Mapping[str, Rule] = {
    "at least 320": lambda width: max(width, 320),
    "at least 320, to a multiple of 64": steps(64, least=320),
    "to a multiple of 64": steps(64),
    "at least 128, to a multiple of 64": steps(64, least=128),
    "by 32 and more, to a multiple of 32": steps(32, margin=32),
    "by 64 and more, to a multiple of 64": steps(64, margin=64),
    "by 32 and more, to a multiple of 64": steps(64, margin=32),
    "the server's": served,
}
PRECISIONS = ("f32", "bf16")
HEADS = (
    "precision of numbers",
    "padding",
    "mean width",
    "found",
    "precision",
    "changed",
    "ms a line",
)


class Line(NamedTuple):
    """A line of a page: its picture, corners (4, 2), and width at a height of 48 pixels."""

    page: str
    picture: Pixels
    box: NDArray[np.int32]
    width: int


def measure(data: Path, version: Path) -> list[list[str]]:
    """Return the rows of the table, one for each precision and rule."""
    config = read_inference_config((version / FILE).read_text("utf-8"))
    names = characters_of(config.postprocess.model_dump()["character_dict"])
    program = {"directory": str(version), "program": "inference.json"}
    program |= {"params": "inference.pdiparams"}
    model = openvino.Core().read_model(onnx_bytes(program))
    truth = json.loads((data / "receipts_truth.json").read_text("utf-8"))
    reference = json.loads((data / "reference.json").read_text("utf-8"))
    lines: list[Line] = []
    for name in truth:
        picture = cv2.cvtColor(cv2.imread(str(data / "images" / name)), cv2.COLOR_BGR2RGB)
        for line in lines_of(reference[name]):
            box = np.array(line.box, np.int32).reshape(4, 2)
            lines.append(Line(name, picture, box, crop_of(box).input_width(48, 0)))
    known = {name: characters(line.text for line in lines_of(truth[name])) for name in truth}
    rows, first = [], list[str]()
    for precision in PRECISIONS:
        hints = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": 1}
        compiled = openvino.compile_model(model, "CPU", hints)
        for name, rule in RULES.items():
            texts, seconds = [], 0.0
            for line in tqdm(lines, leave=False, disable=None):
                width = rule(line.width)
                tensors = line_tensors(
                    line.picture,
                    line.box[None],
                    [width],
                    config.as_meta(),
                    tall=48,
                    margin=LEAST_MARGIN if rule is served else 0,
                )
                [tensor] = tensors.values()
                began = time.process_time()
                outputs = compiled(tensor)
                seconds += time.process_time() - began
                arrays = {str(place): outputs[place] for place in range(len(outputs))}
                texts += [text.text for text in read_texts([arrays], names)]
            first = first or texts
            read = {
                name: characters(
                    text for line, text in zip(lines, texts, strict=True) if line.page == name
                )
                for name in truth
            }
            found = sum((known[name] & read[name]).total() for name in truth)
            rows.append(
                [
                    precision,
                    name,
                    f"{statistics.mean(rule(line.width) for line in lines):.0f}",
                    f"{found / sum(page.total() for page in known.values()):.2%}",
                    f"{found / sum(page.total() for page in read.values()):.2%}",
                    str(sum(text != other for text, other in zip(texts, first, strict=True))),
                    f"{1000 * seconds / len(lines):.1f}",
                ]
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("version", type=Path)
    arguments = parser.parse_args()
    print(markdown_table(HEADS, measure(arguments.data, arguments.version)))


if __name__ == "__main__":
    main()
