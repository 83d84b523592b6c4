"""How far the edges of cut-outs are from known colours and known alpha.

    .venv/bin/python loadtest/edges.py [--limit 48]

Foregrounds of the validation pairs of `sod_train` are laid over parts of other pairs' pictures that
hold no foreground. The new alpha ends two pixels inside the pair's own mask, so that the colour
below every pixel of it is the foreground's own and known. Edges are sharp, soft or like fur, in
turns. The served network makes the mask of each composite. The error of colours is the mean
difference where the known alpha is partial, by the weight that the answer's alpha shows them with;
that of alpha is the mean difference in the band in which the network is not sure. Both are of 255.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from harness import ROOT

from app.backends.process import ProcessBackend
from app.codecs.decode import decode
from app.codecs.limits import PictureLimits
from app.codecs.picture import Pixels
from app.commands.repository import add_repository_option, open_repository, read_version
from app.contracts.ports import Predictor
from app.pipelines.segment import guided, matte, matting
from app.pipelines.segment.foreground import foreground_colours
from app.pipelines.segment.matte import Floats
from app.pipelines.segment.parameters import read_parameters
from app.repository.layout import ModelFiles

DATA = ROOT.parent / "shared" / "data" / "sod_train"
SIDE = 960
EDGES = ("sharp", "soft", "fur")
RUN_SECONDS = 60.0
REFINED: dict[str, Callable[[Pixels, Floats], Pixels]] = {
    "none": lambda _, mask: matte.plain_alpha(mask, SIDE, SIDE),
    "guided": guided.guided_alpha,
    "matting": matting.matted_alpha,
}


@dataclass(frozen=True, slots=True)
class Pair:
    """A picture (320, 320, 3) and its mask (320, 320)."""

    name: str
    picture: Pixels
    mask: Pixels

    def solid(self) -> Pixels:
        """1 where the pixel and its neighbours up to two pixels off are foreground."""
        inside: Pixels = cv2.erode((self.mask > 250).astype(np.uint8), np.ones((5, 5), np.uint8))
        return inside


@dataclass(frozen=True, slots=True)
class Composite:
    """What is served (SIDE, SIDE, 3), the foreground's colours, and the known alpha, 0 to 1."""

    picture: Pixels
    colours: Pixels
    alpha: Floats


def pairs_of(root: Path) -> list[Pair]:
    """Every tenth by sorted name. Raises SystemExit where there are none."""
    names = sorted(path.stem for path in (root / "images").glob("*.jpg"))[::10]
    if not names:
        raise SystemExit(f"data absent: {root / 'images'} holds no .jpg")
    return [
        Pair(
            name,
            _read(root / f"images/{name}.jpg"),
            _read(root / f"masks/{name}.png")[..., 0],
        )
        for name in names
    ]


def _read(path: Path) -> Pixels:
    return matte.over_white(decode(path.read_bytes(), PictureLimits()))


def composites_of(pairs: Sequence[Pair], limit: int) -> list[Composite]:
    """Foregrounds of fair size that do not touch the picture's rim, over others' backgrounds."""
    grounds = [(pair.name, strip) for pair in pairs if (strip := _strip(pair)) is not None]
    chosen = [
        pair
        for pair in pairs
        if 0.08 < pair.solid().mean() < 0.5
        and (pair.mask[[0, -1]] > 10).mean() + (pair.mask[:, [0, -1]] > 10).mean() < 0.2
    ]
    made = []
    for number, pair in enumerate(chosen[:limit]):
        others = [strip for name, strip in grounds if name != pair.name]
        if not others:
            break
        ground = _covering(others[7 * number % len(others)])
        colours = cv2.resize(pair.picture, (SIDE, SIDE), interpolation=cv2.INTER_CUBIC)
        alpha = known_alpha(pair.solid(), EDGES[number % len(EDGES)], seed=number)
        share = alpha[..., None]
        picture = np.rint(colours * share + ground * (1 - share)).astype(np.uint8)
        made.append(Composite(picture, colours, alpha))
    return made


def _strip(pair: Pair) -> Pixels | None:
    """The largest of the four parts beside the foreground's box, if it is worth having."""
    rows, columns = np.nonzero(pair.mask > 10)
    if not rows.size:
        return None
    picture = pair.picture
    parts = (
        picture[:, : columns.min()],
        picture[:, columns.max() + 1 :],
        picture[: rows.min()],
        picture[rows.max() + 1 :],
    )
    largest = max(parts, key=lambda part: part.shape[0] * part.shape[1])
    return largest if largest.size >= 0.4 * picture.size else None


def _covering(ground: Pixels) -> Pixels:
    scale = SIDE / min(ground.shape[:2])
    large = cv2.resize(ground, None, fx=scale, fy=scale, interpolation=cv2.INTER_CUBIC)
    fitted: Pixels = cv2.resize(large[:SIDE, :SIDE], (SIDE, SIDE))
    return fitted


def known_alpha(solid: Pixels, edge: str, *, seed: int) -> Floats:
    """An alpha (SIDE, SIDE) that rises from the outline of `solid` inwards."""
    large = cv2.resize(solid * 255, (SIDE, SIDE), interpolation=cv2.INTER_CUBIC)
    outline = (cv2.GaussianBlur(large, (0, 0), 3) > 127).astype(np.uint8)
    depth = cv2.distanceTransform(outline, cv2.DIST_L2, 5)
    if edge == "sharp":
        alpha = (depth - 0.5) / 2.5
    elif edge == "soft":
        alpha = depth / 9
    else:
        noise = np.random.default_rng(seed).normal(0, 1, depth.shape).astype(np.float32)
        noise = cv2.GaussianBlur(noise, (0, 0), 1.3)
        rough = 0.45 * noise / noise.std() * np.clip(1 - depth / 16, 0, 1)
        alpha = depth / 16 + rough * np.clip(depth / 3, 0, 1)
    limited: Floats = np.clip(alpha, 0, 1).astype(np.float32)
    return limited


def colour_error(composite: Composite, colours: Pixels, alpha: Pixels) -> float:
    """Mean difference, 0 to 255, in the known partial band, weighted by the answer's alpha."""
    band = (composite.alpha > 0.02) & (composite.alpha < 0.98)
    weight = alpha[band].astype(np.float64)
    off = np.abs(colours[band].astype(np.float64) - composite.colours[band]).mean(axis=-1)
    return float((off * weight).sum() / max(weight.sum(), 1.0))


def alpha_error(composite: Composite, alpha: Pixels, mask: Floats) -> float:
    """Mean difference, 0 to 255, in the band in which the network is not sure."""
    band = matting.unsure(cv2.resize(mask, (SIDE, SIDE))) > 0
    return float(np.abs(alpha[band] / 255.0 - composite.alpha[band]).mean() * 255)


def network_of(files: ModelFiles, predictor: Predictor) -> Callable[[Pixels], Floats]:
    info = files.info()
    wanted = read_parameters(info)

    def mask(picture: Pixels) -> Floats:
        tensor = matte.network_input(picture, wanted.size, wanted.mean, wanted.std)
        outputs = predictor.run({info.inputs[0].name: tensor}, timeout=RUN_SECONDS)
        return matte.normalise(np.asarray(outputs[info.outputs[0].name], np.float32)[0, 0])

    return mask


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
    print(f"{len(composites)} composites of {SIDE} x {SIDE}, masks by {files.name}@{files.version}")
    print(f"{'refine':10}{'alpha':>8}" + "".join(f"{edge:>8}" for edge in EDGES), end="")
    print(f"{'ms':>8}{'colours: own':>16}{'estimated':>12}")
    for name, refine in REFINED.items():
        started = time.perf_counter()
        alphas = [refine(each.picture, mask) for each, mask in zip(composites, masks, strict=True)]
        milliseconds = (time.perf_counter() - started) * 1000 / len(composites)
        errors = [alpha_error(*three) for three in zip(composites, alphas, masks, strict=True)]
        parts = [np.mean(errors[number :: len(EDGES)]) for number in range(len(EDGES))]
        own, estimated = colour_errors(composites, alphas)
        cells = "".join(f"{value:8.2f}" for value in (np.mean(errors), *parts))
        print(f"{name:10}{cells}{milliseconds:8.0f}{own:16.2f}{estimated:12.2f}")
    known = [np.rint(each.alpha * 255).astype(np.uint8) for each in composites]
    own, estimated = colour_errors(composites, known)
    print(f"{'known':10}{'':40}{own:16.2f}{estimated:12.2f}")


def colour_errors(composites: Sequence[Composite], alphas: Sequence[Pixels]) -> tuple[float, float]:
    """Of the picture's own colours and of the estimated ones, over all composites."""
    couples = list(zip(composites, alphas, strict=True))
    own = [colour_error(each, each.picture, alpha) for each, alpha in couples]
    estimated = [
        colour_error(each, foreground_colours(each.picture, alpha), alpha)
        for each, alpha in couples
    ]
    return float(np.mean(own)), float(np.mean(estimated))


if __name__ == "__main__":
    main()
