"""Draws a contact sheet of validation masks, worst to best, to see what goes wrong.

    python -m training.u2netp.sheet --data ../shared/data/sod_train \
        --weights runs/u2netp/u2netp.safetensors --out runs/u2netp/sheet.png

Each cell shows picture, truth and normalised mask side by side, with name and IoU@0.5.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from training.u2netp.cells import cell, write_sheet
from training.u2netp.data import read
from training.u2netp.evaluate import load_network, measure, network_maps, stretch

SIDE = 128
COLUMNS = 4


def main() -> None:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cells", type=int, default=32, help="spread evenly from worst to best")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    corpus = read(args.data)
    rows = corpus.validation
    network = load_network(args.weights)
    maps = [stretch(one) for one in network_maps(network, corpus.pictures[rows])]
    overlap = [measure([one], corpus.masks[[r]]).iou for one, r in zip(maps, rows, strict=True)]
    order = np.argsort(overlap, kind="stable")
    count = min(args.cells - args.cells % COLUMNS, len(order) - len(order) % COLUMNS)
    chosen = order[np.linspace(0, len(order) - 1, count).round().astype(int)]
    cells = [
        cell(
            [
                corpus.pictures[rows[i]],
                corpus.masks[rows[i]],
                np.rint(maps[i] * 255).astype(np.uint8),
            ],
            f"{corpus.names[rows[i]]}  IoU {overlap[i]:.2f}",
            side=SIDE,
        )
        for i in chosen
    ]
    try:
        write_sheet(args.out, cells, columns=COLUMNS)
    except ValueError as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    main()
