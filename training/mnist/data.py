"""MNIST digits from the idx files, as flat float32 images scaled to -1..1."""

import gzip
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

TRAIN_SHARE = (
    8_000  # of the 10,000 pictures of the t10k file, when the real training file is absent
)


@dataclass(frozen=True, slots=True)
class Split:
    """`images` float32 [N,784] in -1..1 and `labels` int64 [N]."""

    images: NDArray[np.float32]
    labels: NDArray[np.int64]


def load_mnist(directory: Path) -> tuple[Split, Split]:
    """Training and test split: the real 60,000 + 10,000, or 8,000 + 2,000 of t10k alone."""
    test = _read(directory, "t10k")
    if (directory / "train-images-idx3-ubyte.gz").exists():
        return _read(directory, "train"), test
    cut = TRAIN_SHARE
    return (
        Split(test.images[:cut], test.labels[:cut]),
        Split(test.images[cut:], test.labels[cut:]),
    )


def _read(directory: Path, part: str) -> Split:
    pixels = _idx(directory / f"{part}-images-idx3-ubyte.gz", axes=3)
    labels = _idx(directory / f"{part}-labels-idx1-ubyte.gz", axes=1)
    images = pixels.reshape(len(pixels), 784).astype(np.float32) / np.float32(127.5) - 1
    return Split(images, labels.astype(np.int64))


def _idx(path: Path, *, axes: int) -> NDArray[np.uint8]:
    with gzip.open(path) as file:
        raw = file.read()
    (magic,) = struct.unpack_from(">I", raw)
    if magic != 0x0800 + axes:
        raise ValueError(f"{path.name}: magic number {magic:#x}, expected {0x0800 + axes:#x}")
    shape = struct.unpack_from(f">{axes}I", raw, 4)
    return np.frombuffer(raw, np.uint8, offset=4 * (1 + axes)).reshape(shape)
