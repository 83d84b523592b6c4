"""Reading MNIST's idx files: what does not fit together is a ConfigError."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from paddlepool.contracts.errors import ConfigError
from paddlepool.evidence.quality.run import read_digits


def _write(directory: Path, kind: str, shape: tuple[int, ...]) -> None:
    head = struct.pack(f">{1 + len(shape)}I", 0x0800 + len(shape), *shape)
    content = gzip.compress(head + bytes(int(np.prod(shape))))
    (directory / f"t10k-{kind}-idx{len(shape)}-ubyte.gz").write_bytes(content)


def test_pictures_and_labels_are_read(tmp_path: Path) -> None:
    _write(tmp_path, "images", (3, 28, 28))
    _write(tmp_path, "labels", (3,))
    digits = read_digits(tmp_path, part="t10k")
    assert (digits[0].shape, digits[1].shape) == ((3, 784), (3,))


@pytest.mark.parametrize("shape", [(3, 27, 28), (2, 28, 28)])
def test_pictures_that_do_not_fit_are_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    _write(tmp_path, "images", shape)
    _write(tmp_path, "labels", (3,))
    with pytest.raises(ConfigError, match=f"{shape[0]}×{shape[1]}×28 pixels of t10k, expected 3×"):
        read_digits(tmp_path, part="t10k")
