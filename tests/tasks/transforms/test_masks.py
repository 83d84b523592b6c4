"""The label of each pixel."""

from typing import Any

import numpy as np
import pytest

from paddlepool.contracts.errors import ModelOutputInvalid
from paddlepool.tasks.transforms.masks import label_map

LABELS = np.array([[0, 1], [2, 3]])
SCORES = np.eye(4, dtype=np.float32)[LABELS].transpose(2, 0, 1)[None]


@pytest.mark.parametrize(
    "output", [LABELS[None], LABELS[None, None], LABELS[None].astype(np.int32), SCORES]
)
def test_labels_and_scores_give_the_same_labels(output: Any) -> None:
    labels = label_map(output, height=2, width=4)
    assert labels.tolist() == [[0, 0, 1, 1], [2, 2, 3, 3]]
    assert labels.dtype == np.uint8


def test_more_than_256_classes() -> None:
    labels = label_map(LABELS[None] * 300, height=2, width=2)
    assert (labels.dtype, labels.max()) == (np.uint16, 900)


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (LABELS[None] - 1, "labels go from -1 to 2"),
        (LABELS[None] * 40_000, "the limit is 0 to 65535"),
        (np.zeros((1, 2, 2), np.float32), "neither labels"),
        (np.zeros((1, 2), np.int32), "neither labels"),
    ],
)
def test_another_output_is_refused(output: Any, message: str) -> None:
    with pytest.raises(ModelOutputInvalid, match=message):
        label_map(output, height=2, width=2)
