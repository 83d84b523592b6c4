"""Accuracy, F1 and calibration on tables small enough to do by hand."""

import numpy as np
import pytest

from paddlepool.tasks.sentiment.evaluation import calibration_error, measure, text_key


def test_figures_of_four_texts() -> None:
    """Three of four right; class a: precision 1, recall 1/2; b: 2/3 and 1; c never occurs."""
    scores = np.array([[0.9, 0.1, 0], [0.4, 0.6, 0], [0.2, 0.8, 0], [0.3, 0.7, 0]])
    found = measure(scores, np.array([0, 0, 1, 1]), labels=("a", "b", "c"))
    assert (found.texts, found.accuracy) == (4, 0.75)
    assert found.f1 == {"a": pytest.approx(2 / 3), "b": pytest.approx(0.8), "c": 0.0}
    assert found.macro_f1 == pytest.approx((2 / 3 + 0.8) / 3)


def test_calibration_error_is_the_weighted_gap_of_each_bin() -> None:
    """Two texts at 0.9 with one right, two at 0.6 with two right: (0.8 + 0.8) / 4."""
    scores = np.array([[0.9, 0.1], [0.9, 0.1], [0.6, 0.4], [0.6, 0.4]])
    assert calibration_error(scores, np.array([0, 1, 0, 0])) == pytest.approx(0.4)


def test_a_certain_and_right_model_is_calibrated() -> None:
    """A score of 1 lies in the last bin, not beyond it."""
    assert calibration_error(np.eye(3), np.arange(3)) == 0.0


def test_copies_of_a_post_share_a_key() -> None:
    """Width, case, punctuation and spaces do not count; a text of signs alone is its own key."""
    assert text_key("ＡＢ，今天 好！") == text_key("ab今天好")
    assert text_key("！？") == "！？"
    assert text_key("今天好") != text_key("今天坏")
