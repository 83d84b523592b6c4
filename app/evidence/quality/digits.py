"""Quality of the digit classifier: its accuracy on held-out digits from MNIST's idx files."""

from __future__ import annotations

import gzip
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.contracts.errors import ConfigError
from app.contracts.ports import ServedModelInfo
from app.evidence.quality.ports import Bench, Findings, Source, Table, read_bytes

TRAIN_SHARE = 8_000
"""Number of pictures at the start of the t10k file that train the committed model."""


@dataclass(frozen=True, slots=True)
class Digits:
    """Pictures and their classes: `images` float32 [N,784] in -1..1, `labels` int64 [N]."""

    images: NDArray[np.float32]
    labels: NDArray[np.int64]


def read_digits(directory: Path, *, part: str) -> Digits:
    """Read one part, "t10k" or "train". Raises ConfigError."""
    pixels = _idx(directory / f"{part}-images-idx3-ubyte.gz", axes=3)
    labels = _idx(directory / f"{part}-labels-idx1-ubyte.gz", axes=1)
    images = pixels.reshape(len(pixels), 784).astype(np.float32) / np.float32(127.5) - 1
    return Digits(images, labels.astype(np.int64))


class DigitQuality:
    """The share of held-out digits whose largest logit is the right one."""

    def __init__(self, info: ServedModelInfo, source: Source) -> None:
        self._input, self._output = info.inputs[0].name, info.outputs[0].name
        everything = read_digits(source.data / "mnist", part="t10k")
        end = None if source.limit is None else TRAIN_SHARE + source.limit
        self._digits = Digits(
            everything.images[TRAIN_SHARE:end], everything.labels[TRAIN_SHARE:end]
        )

    def measure(self, bench: Bench) -> Findings:
        jobs = [{self._input: image[None]} for image in self._digits.images]
        outputs = bench.run(jobs, what="digits")
        logits = np.concatenate([np.asarray(o[self._output], np.float32) for o in outputs])
        right = logits.argmax(axis=1) == self._digits.labels
        rows: tuple[tuple[str, tuple[int, float]], ...] = (
            ("held-out digits", (len(right), float(right.mean()))),
        )
        table = Table(
            key="held_out",
            title=f"The digits of MNIST's t10k file after the first {TRAIN_SHARE:,}",
            columns=("digits", "accuracy"),
            rows=rows,
        )
        return Findings(tables=(table,))


def _idx(path: Path, *, axes: int) -> NDArray[np.uint8]:
    try:
        raw = gzip.decompress(read_bytes(path))
        (magic,) = struct.unpack_from(">I", raw)
        if magic != 0x0800 + axes:
            raise ConfigError(f"{path}: magic number {magic:#x}, expected {0x0800 + axes:#x}")
        shape = struct.unpack_from(f">{axes}I", raw, 4)
        array: NDArray[Any] = np.frombuffer(raw, np.uint8, offset=4 * (1 + axes)).reshape(shape)
    except (gzip.BadGzipFile, EOFError, struct.error, ValueError, zlib.error) as error:
        raise ConfigError(f"{path} is not a gzipped idx file") from error
    return array
