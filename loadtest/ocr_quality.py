"""Compare what a running server reads with what PaddleX read, and with what people read.

    .venv/bin/python loadtest/ocr_quality.py ../shared/data/ocr [--url URL] [--predictor GROUPS]

The folder has `images/`, `reference.json` (PaddleX's lines in each picture) and
`receipts_truth.json` (lines that a person read in the receipts). Pictures are compared with
PaddleX's lines at its own limit (`min` 64), the receipts with the truth at the limit of the model,
too. "Found" is the share of the characters of the truth that were read, "precision" the share of
the characters read that are in the truth; case and spaces aside, and wherever they stand.
"""

import argparse
import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from tqdm import tqdm

from paddlepool.tasks.ocr.evaluation import characters

REFERENCE_LIMIT = {"textDetLimitSideLen": 64, "textDetLimitType": "min"}


class Line(NamedTuple):
    """A line of text and its corners, x and y in turn."""

    text: str
    box: tuple[int, ...]


def read(client: httpx.Client, picture: Path, options: Mapping[str, Any]) -> list[Line]:
    body = {"file": b64encode(picture.read_bytes()).decode(), "fileType": 1, **options}
    reply = client.post("/ocr", json=body)
    reply.raise_for_status()
    [page] = reply.json()["result"]["ocrResults"]
    pruned = page["prunedResult"]
    boxes = [tuple(n for corner in box for n in corner) for box in pruned["rec_polys"]]
    return [Line(text, box) for text, box in zip(pruned["rec_texts"], boxes, strict=True)]


def equal_lines(lines: Sequence[Line], reference: Sequence[Line]) -> tuple[int, int]:
    """Return how many lines of the reference have the same box, and how many the same text, too."""
    texts = {line.box: line.text for line in lines}
    boxes = sum(line.box in texts for line in reference)
    return boxes, sum(texts.get(line.box) == line.text for line in reference)


def lines_of(entries: Sequence[Mapping[str, Any]]) -> list[Line]:
    flat = (
        (entry["text"], [n for corner in entry["box"] for n in corner])
        if isinstance(entry["box"][0], list)
        else (entry["text"], entry["box"])
        for entry in entries
    )
    return [Line(text, tuple(round(number) for number in box)) for text, box in flat]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--predictor", help="instance groups, as detect:NAME,recognise:NAME")
    arguments = parser.parse_args()
    reference = json.loads((arguments.data / "reference.json").read_text("utf-8"))
    truth = json.loads((arguments.data / "receipts_truth.json").read_text("utf-8"))
    parameters = {"timeout_ms": "30000"}
    if arguments.predictor:
        parameters["predictor"] = arguments.predictor
    with httpx.Client(base_url=arguments.url, params=parameters, timeout=120) as client:
        boxes = texts = total = surplus = 0
        results: dict[str, dict[str, list[Line]]] = {"min 64": {}, "model's": {}}
        for name, entries in tqdm(sorted(reference.items()), leave=False, disable=None):
            expected = lines_of(entries)
            lines = read(client, arguments.data / "images" / name, REFERENCE_LIMIT)
            results["min 64"][name] = lines
            same, equal = equal_lines(lines, expected)
            if same < len(expected) or len(lines) > len(expected):
                print(
                    f"{name}: {len(expected)} lines of PaddleX, {same} as boxes, {len(lines)} lines"
                )
            total, boxes, texts = total + len(expected), boxes + same, texts + equal
            surplus += max(0, len(lines) - len(expected))
        for name in tqdm(sorted(truth), leave=False, disable=None):
            results["model's"][name] = read(client, arguments.data / "images" / name, {})
    print(f"lines of PaddleX: {total}; same box {boxes / total:.2%}, same text {texts / total:.2%}")
    print(f"lines that PaddleX does not have: {surplus}")
    for limit, pages in results.items():
        found = read_count = all_count = 0
        for name, entries in truth.items():
            wanted, got = (
                characters(line.text for line in lines)
                for lines in (lines_of(entries), pages[name])
            )
            found += (wanted & got).total()
            read_count += got.total()
            all_count += wanted.total()
        print(
            f"limit {limit}: characters found {found / all_count:.2%}, "
            f"precision {found / read_count:.2%} ({len(truth)} receipts)"
        )


if __name__ == "__main__":
    main()
