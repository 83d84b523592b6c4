"""Pages with bars instead of lines of text: a red bar reads "a", a blue one "b"."""

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tests.model_files import write_config, write_manifest

COLOURS = {"a": (200, 0, 0), "b": (0, 0, 200)}
Bar = tuple[int, int, int, int, str]
"""Left, top, right, bottom, and text."""
BARS: Sequence[Bar] = ((20, 30, 180, 54, "b"), (210, 32, 290, 54, "a"), (20, 90, 120, 110, "a"))

DETECTOR = """
Global: {model_name: PP-OCRv5_mobile_det}
PreProcess:
  transform_ops:
  - DecodeImage: {channel_first: false, img_mode: BGR}
  - DetResizeForTest: {resize_long: 960}
  - NormalizeImage: {mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225], order: hwc}
  - ToCHWImage: null
PostProcess: {name: DBPostProcess, thresh: 0.3, box_thresh: 0.6, unclip_ratio: 0.3}
"""
RECOGNISER = """
Global: {model_name: PP-OCRv5_mobile_rec}
PreProcess:
  transform_ops:
  - DecodeImage: {channel_first: false, img_mode: BGR}
  - RecResizeImg: {image_shape: [3, 48, 320]}
PostProcess: {name: CTCLabelDecode, character_dict: [a, b]}
"""
ORIENTER = """
Global: {model_name: PP-LCNet_x1_0_doc_ori}
PreProcess:
  transform_ops:
  - ResizeImage: {size: [32, 32]}
  - NormalizeImage: {order: ""}
  - ToCHWImage: null
PostProcess: {Topk: {topk: 1, label_list: ["0", "90", "180", "270"]}}
"""

CONFIG = """
pipeline = "ocr"
[parts]
detect = "detector"
recognise = "recogniser"
"""


def page(bars: Sequence[Bar] = BARS, width: int = 320, height: int = 240) -> NDArray[np.uint8]:
    pixels = np.full((height, width, 3), 255, np.uint8)
    for left, top, right, bottom, text in bars:
        pixels[top:bottom, left:right] = COLOURS[text]
    return pixels


def encoded(pixels: NDArray[np.uint8], kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def answer(bars: Sequence[Bar] = BARS) -> list[dict[str, Any]]:
    """The lines of a page in the order of the bars, as the self-test stores them."""
    return [
        {
            "text": text,
            "box": [[left, top], [right, top], [right, bottom], [left, bottom]],
        }
        for left, top, right, bottom, text in bars
    ]


def write_ocr(repository: Path, config: str = CONFIG) -> None:
    """Write the composed model `ocr`, whose sample is page()."""
    directory = repository / "ocr" / "1"
    directory.mkdir(parents=True)
    write_config(repository / "ocr", config)
    (directory / "sample.png").write_bytes(encoded(page()))
    (directory / "answer.json").write_text(json.dumps(answer()), "utf-8")
    write_manifest(directory)
    file = directory / "manifest.json"
    manifest = json.loads(file.read_text("utf-8"))
    kept = {name: manifest[name] for name in ("files", "weights", "built_with")}
    head = {"format": 3, "sample": "sample.png", "answer": "answer.json"}
    file.write_text(json.dumps(head | kept), "utf-8")
