"""MNIST digits from the idx files, as flat float32 images scaled to -1..1."""

from pathlib import Path

from paddlepool.evidence.quality.run import TRAIN_SHARE, Digits, read_digits

Split = Digits


def load_mnist(directory: Path) -> tuple[Split, Split]:
    """Training and test split: the real 60,000 + 10,000, or 8,000 + 2,000 of t10k alone."""
    test = read_digits(directory, part="t10k")
    if (directory / "train-images-idx3-ubyte.gz").exists():
        return read_digits(directory, part="train"), test
    return (
        Split(test.images[:TRAIN_SHARE], test.labels[:TRAIN_SHARE]),
        Split(test.images[TRAIN_SHARE:], test.labels[TRAIN_SHARE:]),
    )
