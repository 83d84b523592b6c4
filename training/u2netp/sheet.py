"""Draws a contact sheet of validation masks, worst to best, to see what goes wrong.

    python -m training.u2netp.sheet --data ../shared/data/sod_train \
        --weights runs/u2netp/u2netp.safetensors --out runs/u2netp/sheet.png

Each cell shows picture, truth and normalised mask side by side, with name and IoU@0.5.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import cv2
import numpy as np
import torch

from training.u2netp.data import Pixels, read
from training.u2netp.evaluate import Map, load_network, measure, network_maps, stretch

CELL = 128
COLUMNS = 4


def _cell(picture: Pixels, truth: Pixels, mask: Map, label: str) -> Pixels:
    parts = [
        picture[..., ::-1],
        cv2.cvtColor(truth, cv2.COLOR_GRAY2BGR),
        cv2.cvtColor(np.rint(mask * 255).astype(np.uint8), cv2.COLOR_GRAY2BGR),
    ]
    small = [cv2.resize(part, (CELL, CELL), interpolation=cv2.INTER_AREA) for part in parts]
    strip = np.zeros((18, 3 * CELL, 3), np.uint8)
    cv2.putText(strip, label, (3, 13), cv2.FONT_HERSHEY_SIMPLEX, 0.42, (255, 255, 255), 1)
    cell = np.vstack([strip, np.hstack(small)])
    return cv2.copyMakeBorder(cell, 2, 2, 2, 2, cv2.BORDER_CONSTANT, value=(90, 60, 0))


def main() -> None:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cells", type=int, default=32, help="spread evenly from worst to best")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    corpus = read(given.data)
    rows = corpus.validation
    network = load_network(given.weights)
    maps = [stretch(one) for one in network_maps(network, corpus.pictures[rows])]
    overlap = [measure([one], corpus.masks[[r]]).iou for one, r in zip(maps, rows, strict=True)]
    order = np.argsort(overlap, kind="stable")
    count = min(given.cells - given.cells % COLUMNS, len(order) - len(order) % COLUMNS)
    chosen = order[np.linspace(0, len(order) - 1, count).round().astype(int)]
    cells = [
        _cell(
            corpus.pictures[rows[i]],
            corpus.masks[rows[i]],
            maps[i],
            f"{corpus.names[rows[i]]}  IoU {overlap[i]:.2f}",
        )
        for i in chosen
    ]
    lines = [np.hstack(cells[i : i + COLUMNS]) for i in range(0, len(cells), COLUMNS)]
    given.out.parent.mkdir(parents=True, exist_ok=True)
    if not cv2.imwrite(str(given.out), np.vstack(lines)):
        raise SystemExit(f"{given.out}: could not be written; the name must end in .png or .jpg")


if __name__ == "__main__":
    main()
