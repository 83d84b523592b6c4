"""Reads the salient-object pairs and the reference network's soft masks, and packs them to travel.

A *corpus* is everything training reads: pictures and graded masks as uint8 arrays in memory,
and for each training picture the seven maps of the reference network. It comes from a folder
(`images/*.jpg`, `masks/*.png`) plus a soft-target file, or from one packed `.npz`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]

SIDE = 320
SOFT_SIDE = 160
"""Side outputs are blurry by construction; half size loses nothing a loss would see."""
VALIDATION_EVERY = 10
IMAGENET_MEAN = np.array([0.485, 0.456, 0.406], np.float32)
IMAGENET_STD = np.array([0.229, 0.224, 0.225], np.float32)


class DataError(Exception):
    """The training data are absent or unfit; the message says which and what was expected."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """N pictures N×320×320×3 RGB, masks N×320×320; soft maps (N×320×320, N×6×160×160) or None.

    Rows whose index is a multiple of ten (names sorted) are validation and have no soft maps:
    theirs are zero and never read.
    """

    names: tuple[str, ...]
    pictures: Pixels
    masks: Pixels
    soft_fused: Pixels | None
    soft_sides: Pixels | None

    @property
    def validation(self) -> NDArray[np.int64]:
        """Indices of every tenth pair by sorted name."""
        return np.arange(0, len(self.names), VALIDATION_EVERY)

    @property
    def training(self) -> NDArray[np.int64]:
        """All other indices."""
        everything = np.arange(len(self.names))
        return everything[everything % VALIDATION_EVERY != 0]


def normalise(picture: Pixels) -> NDArray[np.float32]:
    """H×W×3 uint8 RGB to the official 3×H×W input: divide by maximum, ImageNet statistics."""
    scaled = picture.astype(np.float32) / max(int(picture.max()), 1)
    return np.ascontiguousarray(((scaled - IMAGENET_MEAN) / IMAGENET_STD).transpose(2, 0, 1))


def _read(path: Path, flag: int) -> Pixels:
    image = cv2.imread(str(path), flag)
    if image is None:
        raise DataError(f"{path}: not a readable picture")
    if image.shape[:2] != (SIDE, SIDE):
        image = cv2.resize(image, (SIDE, SIDE), interpolation=cv2.INTER_LINEAR)
    return np.asarray(image, np.uint8)


def _list_names(folder: Path) -> tuple[str, ...]:
    images, masks = folder / "images", folder / "masks"
    if not images.is_dir() or not masks.is_dir():
        raise DataError(f"{folder}: expected the folders images/ and masks/ in it; see README.md")
    names = tuple(sorted(path.stem for path in images.glob("*.jpg")))
    missing = [name for name in names if not (masks / f"{name}.png").is_file()]
    if missing:
        raise DataError(f"{masks}: {len(missing)} masks missing, the first is {missing[0]}.png")
    if len(names) < 2 * VALIDATION_EVERY:
        raise DataError(f"{images}: {len(names)} pictures, at least {2 * VALIDATION_EVERY} needed")
    return names


def read_folder(folder: Path, *, soft: Path | None = None) -> Corpus:
    """Load `images/*.jpg` with `masks/*.png`, and the soft-target file if one is given."""
    names = _list_names(folder)
    pictures = np.empty((len(names), SIDE, SIDE, 3), np.uint8)
    masks = np.empty((len(names), SIDE, SIDE), np.uint8)
    for row, name in enumerate(names):
        bgr = _read(folder / "images" / f"{name}.jpg", cv2.IMREAD_COLOR)
        pictures[row] = bgr[..., ::-1]
        masks[row] = _read(folder / "masks" / f"{name}.png", cv2.IMREAD_GRAYSCALE)
    fused, sides = (None, None) if soft is None else _read_soft(soft, names)
    return Corpus(names, pictures, masks, fused, sides)


def _read_soft(path: Path, names: tuple[str, ...]) -> tuple[Pixels, Pixels]:
    if not path.is_file():
        raise DataError(f"{path}: no such soft-target file; make it with training.u2netp.teacher")
    with np.load(path) as archive:
        if tuple(archive["names"].tolist()) != names:
            raise DataError(f"{path}: made for other pictures ({len(archive['names'])} names)")
        return archive["fused"], archive["sides"]


def write_soft(path: Path, names: tuple[str, ...], fused: Pixels, sides: Pixels) -> None:
    """Store the reference maps: fused N×320×320 and sides N×6×160×160, uint8."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp.npz")
    np.savez_compressed(temporary, names=np.array(names), fused=fused, sides=sides)
    temporary.replace(path)


def read(source: Path, *, soft: Path | None = None) -> Corpus:
    """Load a data folder or a packed `.npz`; a pack already holds its soft targets."""
    if source.is_dir():
        return read_folder(source, soft=soft)
    if source.suffix == ".npz" and source.is_file():
        return read_pack(source)
    raise DataError(f"{source}: no such folder or packed .npz of training data; see README.md")


def _encode(
    images: Iterable[Pixels], suffix: str, options: list[int]
) -> tuple[Pixels, NDArray[np.int64]]:
    """Concatenated compressed pictures, and the length of each."""
    coded = [cv2.imencode(suffix, image, options)[1].ravel() for image in images]
    lengths = np.array([len(one) for one in coded], np.int64)
    return np.concatenate(coded), lengths


def write_pack(corpus: Corpus, path: Path, *, quality: int = 75, limit_mib: float = 50) -> int:
    """Write pictures and soft maps as JPEG, masks as PNG, into one npz; return its bytes.

    Raises DataError when the file would exceed `limit_mib`, for then it does not travel.
    """
    jpeg, grey = [cv2.IMWRITE_JPEG_QUALITY, quality], [cv2.IMWRITE_JPEG_QUALITY, 55]
    parts = {
        "pictures": _encode((p[..., ::-1] for p in corpus.pictures), ".jpg", jpeg),
        "masks": _encode(corpus.masks, ".png", [cv2.IMWRITE_PNG_COMPRESSION, 9]),
    }
    if corpus.soft_fused is not None and corpus.soft_sides is not None:
        parts["fused"] = _encode(corpus.soft_fused, ".jpg", grey)
        # Six maps stacked into one tall picture share one set of JPEG headers.
        stacked = corpus.soft_sides.reshape(len(corpus.names), 6 * SOFT_SIDE, SOFT_SIDE)
        parts["sides"] = _encode(stacked, ".jpg", grey)
    arrays: dict[str, Any] = {name: coded for name, (coded, _) in parts.items()}
    arrays |= {f"{name}_lengths": lengths for name, (_, lengths) in parts.items()}
    total = sum(array.nbytes for array in arrays.values())
    if total > limit_mib * 2**20:
        raise DataError(f"pack of {total / 2**20:.1f} MiB, limit {limit_mib:g} MiB; lower quality")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp.npz")
    np.savez(temporary, names=np.array(corpus.names), **arrays)
    temporary.replace(path)
    return path.stat().st_size


def read_pack(path: Path) -> Corpus:
    """Load a file that write_pack made."""

    def decode(name: str, flag: int) -> Pixels:
        ends = archive[f"{name}_lengths"].cumsum()
        data = archive[name]
        pieces = np.split(data, ends[:-1])
        return np.stack([np.asarray(cv2.imdecode(piece, flag), np.uint8) for piece in pieces])

    with np.load(path) as archive:
        if not {"names", "pictures", "masks"} <= set(archive.files):
            raise DataError(f"{path}: not a pack of training data (holds {archive.files})")
        names = tuple(archive["names"].tolist())
        pictures = np.ascontiguousarray(decode("pictures", cv2.IMREAD_COLOR)[..., ::-1])
        masks = decode("masks", cv2.IMREAD_GRAYSCALE)
        if "fused" not in archive.files:
            return Corpus(names, pictures, masks, None, None)
        sides = decode("sides", cv2.IMREAD_GRAYSCALE)
        return Corpus(
            names,
            pictures,
            masks,
            decode("fused", cv2.IMREAD_GRAYSCALE),
            sides.reshape(len(names), 6, SOFT_SIDE, SOFT_SIDE),
        )
