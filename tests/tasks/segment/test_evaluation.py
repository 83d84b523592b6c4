"""MAE, max-F and IoU on masks small enough to do by hand, and the masks without training."""

import numpy as np
import pytest

from paddlepool.tasks.segment.evaluation import measure

TRUTH = np.array([[255, 255], [0, 0]], np.uint8)


def test_a_mask_that_is_half_right() -> None:
    """One true pixel of two found, and one false: error 0.5, IoU 1/3, precision = recall = 0.5."""
    found = measure([np.array([[1, 0], [1, 0]], np.float32)], [TRUTH])
    assert (found.mae, found.iou) == (0.5, pytest.approx(1 / 3))
    # At threshold 0 everything is marked: precision 0.5 and recall 1 are the better F.
    assert found.max_f == pytest.approx(1.3 * 0.5 / (0.3 * 0.5 + 1))


def test_graded_masks_count_in_the_error_alone() -> None:
    """A truth of 51/255 is background for IoU, and 0.2 for the error; two empty masks agree."""
    found = measure([np.zeros((2, 2), np.float32)], [np.full((2, 2), 51, np.uint8)])
    assert (found.mae, found.iou) == (pytest.approx(0.2), 1.0)


def test_figures_are_means_over_pictures() -> None:
    """A right and a wholly wrong picture: IoU 0.5 and error 0.5."""
    right = (TRUTH / 255).astype(np.float32)
    found = measure([right, 1 - right], [TRUTH, TRUTH])
    assert (found.mae, found.iou, found.pictures) == (0.5, 0.5, 2)
