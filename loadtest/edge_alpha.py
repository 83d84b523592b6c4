"""How far each kind of `refine` is from known alpha: `none`, `guided` and `matting`.

    python loadtest/edge_alpha.py [--limit 48]

The composites are those of `edge_colours.py`, and so is the network. The error is the mean
difference from the known alpha, 0 to 255, over the band in which the network is not sure.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import cv2
import numpy as np
from edge_colours import DATA, EDGES, SIDE, Composite, composites_of, network_of, pairs_of

from app.backends.process import ProcessBackend
from app.codecs.picture import Pixels
from app.commands.repository import add_repository_option, open_repository, read_version
from app.pipelines.segment import guided, matte, matting
from app.pipelines.segment.matte import Floats


def error(composite: Composite, alpha: Pixels, mask: Floats) -> float:
    band = matting.unsure(cv2.resize(mask, (SIDE, SIDE))) > 0
    return float(np.abs(alpha[band] / 255.0 - composite.alpha[band]).mean() * 255)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_repository_option(parser)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--limit", type=int, default=48, help="composites (default 48)")
    given = parser.parse_args(arguments)
    cv2.setNumThreads(1)
    composites = composites_of(pairs_of(given.data), given.limit)
    files = read_version(open_repository(given.repository), "u2netp", None)
    predictor = ProcessBackend()(files.spec(files.config.group(files.config.default_group)))
    try:
        network = network_of(files, predictor)
        masks = [network(each.picture) for each in composites]
    finally:
        predictor.close()
    kinds: dict[str, Callable[[Pixels, Floats], Pixels]] = {
        "none": lambda _, mask: matte.plain_alpha(mask, SIDE, SIDE),
        "guided": guided.guided_alpha,
        "matting": matting.matted_alpha,
    }
    print(f"{len(composites)} composites of {SIDE} x {SIDE}, masks by {files.name}@{files.version}")
    print(
        f"{'alpha error, 0 to 255':22}{'all':>8}" + "".join(f"{edge:>8}" for edge in EDGES), end=""
    )
    print(f"{'ms':>10}")
    for name, make in kinds.items():
        started = time.perf_counter()
        alphas = [make(each.picture, mask) for each, mask in zip(composites, masks, strict=True)]
        each_ms = (time.perf_counter() - started) * 1000 / len(composites)
        errors = [error(*three) for three in zip(composites, alphas, masks, strict=True)]
        parts = [np.mean(errors[number :: len(EDGES)]) for number in range(len(EDGES))]
        cells = "".join(f"{value:8.2f}" for value in (np.mean(errors), *parts))
        print(f"{name:22}{cells}{each_ms:10.0f}")


if __name__ == "__main__":
    main()
