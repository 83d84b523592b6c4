"""What closed-form matting would make of edges, beside `guided` and `none`, against known alpha.

    python loadtest/edge_alpha.py [--limit 48] [--radius 1] [--epsilon 1e-5] [--prior 0.01]

The composites are those of `edge_colours.py`, and so is the network. Matting solves for the alpha
that is a linear function of the colours in every window (Levin et al., "A Closed-Form Solution to
Natural Image Matting", 2008), with what the network is sure of held fixed. The matrix is never
built: its product with an alpha is a few box filters (He et al., "Fast Matting Using Large Kernel
Matting Laplacian Matrices", 2010), and conjugate gradients need nothing else. The error is the mean
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
from app.pipelines.segment import guided, matte
from app.pipelines.segment.matte import Floats

SOLVED_PIXELS = 250_000
SURE = (0.05, 0.95)
WIDTH = 0.012
"""How far the band reaches beyond what the network is unsure of, as a part of the longer side."""
ROUNDS = 120


def unsure(mask: Floats, rows: int, columns: int) -> Pixels:
    """1 (rows, columns) in the band that is solved for: the network's doubts and what is near."""
    level = cv2.resize(mask, (columns, rows), interpolation=cv2.INTER_LINEAR)
    side = 2 * round(WIDTH * max(rows, columns)) + 1
    doubt = cv2.inRange(level, *SURE) // 255
    # A hard edge of the mask has no doubt between its pixels.
    rises = cv2.morphologyEx((level > 0.5).astype(np.uint8), cv2.MORPH_GRADIENT, np.ones((3, 3)))
    band: Pixels = cv2.dilate(doubt | rises, np.ones((side, side), np.uint8))
    return band


class Laplacian:
    """The matting Laplacian of a picture (h, w, 3) from 0 to 1, divided by a window's pixels."""

    def __init__(self, picture: Floats, *, radius: int, epsilon: float) -> None:
        self._window = (2 * radius + 1, 2 * radius + 1)
        self._colours: list[Floats] = [
            np.ascontiguousarray(picture[..., channel]) for channel in range(3)
        ]
        self._means = [self._mean(plane) for plane in self._colours]
        spread = np.empty((*picture.shape[:2], 3, 3), np.float32)
        for i, one in enumerate(self._colours):
            for j, other in enumerate(self._colours):
                spread[..., i, j] = self._mean(one * other) - self._means[i] * self._means[j]
            spread[..., i, i] += np.float32(epsilon)
        inverse = np.linalg.inv(spread).astype(np.float32)
        self._inverse = [
            [np.ascontiguousarray(inverse[..., i, j]) for j in range(3)] for i in range(3)
        ]

    def _mean(self, plane: Floats) -> Floats:
        result: Floats = cv2.blur(plane, self._window, borderType=cv2.BORDER_REFLECT)
        return result

    def __matmul__(self, alpha: Floats) -> Floats:
        middle = self._mean(alpha)
        parts = [
            self._mean(np.multiply(plane, alpha, dtype=np.float32)) - mean * middle
            for plane, mean in zip(self._colours, self._means, strict=True)
        ]
        offset = middle.copy()
        fitted = np.zeros_like(alpha)
        for row, mean, plane in zip(self._inverse, self._means, self._colours, strict=True):
            slope: Floats = row[0] * parts[0] + row[1] * parts[1] + row[2] * parts[2]
            offset -= slope * mean
            fitted += self._mean(slope) * plane
        fitted += self._mean(offset)
        return alpha - fitted


def solved(
    laplacian: Laplacian, start: Floats, band: Pixels, target: Floats, prior: float
) -> Floats:
    """Alpha by conjugate gradients: `start` outside of the band, and inside it drawn to `target`
    by as much as `prior` says."""
    free, weight = band.astype(np.float32), np.float32(prior)
    alpha = start.copy()
    rest = (weight * (target - alpha) - (laplacian @ alpha)) * free
    step, size = rest.copy(), float((rest * rest).sum())
    for _ in range(ROUNDS):
        if size < 1e-6:
            break
        image = (laplacian @ step + weight * step) * free
        length = np.float32(size / max(float((step * image).sum()), 1e-20))
        alpha += length * step
        rest -= length * image
        before, size = size, float((rest * rest).sum())
        step = rest + np.float32(size / before) * step
    clipped: Floats = np.clip(alpha, 0, 1)
    return clipped


def matted(picture: Pixels, mask: Floats, given: argparse.Namespace) -> Pixels:
    """Alpha (H, W): solved in a reduced picture, and carried to the full one by its colours."""
    height, width = picture.shape[:2]
    step = max(1, round((height * width / SOLVED_PIXELS) ** 0.5))
    rows, columns = height // step, width // step
    small = cv2.resize(picture, (columns, rows), interpolation=cv2.INTER_AREA)
    level = cv2.resize(mask, (columns, rows), interpolation=cv2.INTER_LINEAR)
    start = cv2.resize(guided.guided_alpha(picture, mask), (columns, rows)).astype(np.float32) / 255
    band = unsure(mask, rows, columns)
    fixed = np.where(band > 0, start, (level > 0.5).astype(np.float32))
    colours = small.astype(np.float32) / np.float32(255)
    laplacian = Laplacian(colours, radius=given.radius, epsilon=given.epsilon)
    alpha = solved(laplacian, fixed, band, start, given.prior)
    large = cv2.resize(alpha, (width, height), interpolation=cv2.INTER_LINEAR)
    levels: Pixels = np.rint(large * 255).astype(np.uint8)
    return levels


def error(composite: Composite, alpha: Pixels, mask: Floats) -> float:
    band = unsure(mask, SIDE, SIDE) > 0
    return float(np.abs(alpha[band] / 255.0 - composite.alpha[band]).mean() * 255)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_repository_option(parser)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--limit", type=int, default=48, help="composites (default 48)")
    parser.add_argument("--radius", type=int, default=1, help="of the windows (default 1)")
    parser.add_argument("--epsilon", type=float, default=1e-5, help="(default 1e-5)")
    parser.add_argument("--prior", type=float, default=0.01, help="weight of guided (default 0.01)")
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
        "matting": lambda picture, mask: matted(picture, mask, given),
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
