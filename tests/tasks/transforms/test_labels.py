"""Labels and texts from the scores of a model."""

import numpy as np
import pytest

from paddlepool.tasks.transforms.labels import (
    Label,
    characters_of,
    text_from_classes,
    top_labels,
)


def test_the_best_labels_come_first() -> None:
    scores = np.array([[0.1, 0.7, 0.2], [0.5, 0.25, 0.25]])
    [first, second] = top_labels(scores, topk=2, label_list=("cat", "dog"))
    assert first == [Label(1, "dog", 0.7), Label(2, "2", 0.2)]
    assert second[0] == Label(0, "cat", 0.5)
    assert len(top_labels(scores, topk=9)[0]) == 3


def test_a_text_merges_repeats_before_it_drops_blanks() -> None:
    characters = characters_of(("a", "b"))
    classes = np.array([[1, 1, 0, 1, 3, 2], [0, 0, 0, 0, 0, 0]])
    scores = np.eye(4)[classes] * np.array([0.5, 0.9, 1.0, 0.7, 0.6, 0.8])[:, None]
    [line, empty] = text_from_classes(scores, characters)
    assert line.text == "aa b"
    assert line.score == pytest.approx((0.5 + 0.7 + 0.6 + 0.8) / 4)
    assert empty == ("", 0.0)
