"""Draws what the served model makes of pictures that may be shown, for its model card.

    python -m training.u2netp.cutouts [--edges] [--group openvino_int8]

Each cell shows picture, mask and cut-out on a checkerboard, as `POST /segment` gives them with its
defaults, and the confidence that it tells. With `--edges` each shows picture, cut-out with the
picture's own colours and cut-out with estimated ones over a saturated colour instead. Needs the
package alone, not the extra `train`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from paddlepool.cli.shared import add_repository_option, open_repository, read_version
from paddlepool.contracts.errors import PaddlepoolError
from paddlepool.contracts.ports import Predictor
from paddlepool.engine.backends.process import ProcessBackend
from paddlepool.models.repository.layout import ModelFiles
from paddlepool.tasks.codecs.decode import decode
from paddlepool.tasks.codecs.limits import PictureLimits
from paddlepool.tasks.codecs.picture import Pixels
from paddlepool.tasks.segment import matte
from paddlepool.tasks.segment.foreground import foreground_colours
from paddlepool.tasks.segment.matte import flat, stacked
from paddlepool.tasks.segment.pipeline import read_parameters
from paddlepool.tasks.segment.refine import guided_alpha
from training.u2netp.cells import cell, write_sheet

MODEL = "u2netp"
PICTURES = Path(__file__).parent / "pictures"
SHEET = Path("docs/images/u2netp-cutouts.jpg")
EDGES = Path("docs/images/u2netp-edges.jpg")
SATURATED = (255, 0, 160, 255)
MAX_BYTES = 250_000
SUFFIXES = {".jpg", ".jpeg", ".png"}
SIDE = 192
COLUMNS = 2
SQUARE = 12
"""Pixels of the checkerboard's squares, in a picture of 480."""
RUN_SECONDS = 120.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_repository_option(parser)
    parser.add_argument("--version", type=int, help="default: the newest")
    parser.add_argument("--pictures", type=Path, default=PICTURES, metavar="DIR")
    parser.add_argument("--group", help="instance group; default: the one a server starts with")
    parser.add_argument("--edges", action="store_true", help="compare the colours of edges")
    parser.add_argument("--out", type=Path, metavar="FILE")
    args = parser.parse_args(arguments)
    out = args.out or (EDGES if args.edges else SHEET)
    paths = sorted(path for path in args.pictures.glob("*") if path.suffix in SUFFIXES)
    if not paths:
        raise SystemExit(f"{args.pictures}: holds no picture")
    try:
        files = read_version(open_repository(args.repository), MODEL, args.version)
        group = files.group(args.group)
        predictor = ProcessBackend()(files.spec(group))
        try:
            cells = [_cell(path, files, predictor, edges=args.edges) for path in paths]
        finally:
            predictor.close()
        title = f"{files.name} version {files.version}, sha256 {files.manifest.sha256()[:12]}"
        write_sheet(out, cells, columns=COLUMNS, title=f"{title}, predictor {group.name}")
    except (PaddlepoolError, ValueError) as error:
        raise SystemExit(str(error)) from error
    size = out.stat().st_size
    print(f"{out}: {len(cells)} pictures, {size / 1e3:.0f} kB")
    if size > MAX_BYTES:
        raise SystemExit(f"{out}: {size} bytes, at most {MAX_BYTES} may be committed")


def _cell(path: Path, files: ModelFiles, predictor: Predictor, *, edges: bool) -> Pixels:
    info = files.info()
    wanted = read_parameters(info)
    picture = matte.over_white(decode(path.read_bytes(), PictureLimits()))
    tensor = matte.network_input(picture, wanted.size, wanted.mean, wanted.std)
    outputs = predictor.run({info.inputs[0].name: tensor}, timeout=RUN_SECONDS)
    raw = np.asarray(outputs[info.outputs[0].name], np.float32)[0, 0]
    mask = matte.normalise(raw)
    height, width = picture.shape[:2]
    alpha = guided_alpha(picture, mask)
    colours = foreground_colours(picture, alpha)
    label = f"{path.stem}   confidence {matte.confidence(raw):.2f}"
    if edges:
        ground = flat(SATURATED, width)
        over = [stacked(image, alpha, ground=ground) for image in (picture, colours)]
        return cell([picture, *over], label, side=SIDE)
    plain = matte.plain_alpha(mask, width, height)
    return cell([picture, plain, over_checkerboard(colours, alpha)], label, side=SIDE)


def over_checkerboard(picture: Pixels, alpha: Pixels) -> Pixels:
    """The picture (H, W, 3) by its alpha (H, W) over light and dark grey squares."""
    rows, columns = np.indices(alpha.shape) // SQUARE
    ground = np.where((rows + columns) % 2, 200, 140)[..., None]
    share = alpha[..., None].astype(np.float32) / 255
    mixed = picture * share + ground * (1 - share)
    return np.asarray(np.rint(mixed), np.uint8)


if __name__ == "__main__":
    main()
