"""The emotion training code: clean splits, masking, calibration and the saved folder."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip(
    "torch", reason="SKIPPED EMOTION TRAINING TESTS: torch is absent; install the extra [train]"
)
pytest.importorskip("transformers", reason="install the extra [train]")
pytest.importorskip("sklearn", reason="install the extra [train]")

from app.quality.labels import calibration_error  # noqa: E402 - after the skips
from training.emotion.prepare import Overlap  # noqa: E402
from training.emotion.quality import softmax, temperature  # noqa: E402

pytestmark = pytest.mark.nightly


def test_overlap_is_found_through_punctuation_and_comments() -> None:
    """A post is kept out if it is an eval post with other punctuation, or holds one."""
    forbidden = Overlap(["今天的天气真好啊，我们一起出去玩吧！"])
    assert "今天的天气真好啊 我们一起出去玩吧" in forbidden
    assert "转发：今天的天气真好啊，我们一起出去玩吧！//@某人:同意" in forbidden
    assert "明天有雨，出门的时候记得带伞" not in forbidden


def test_temperature_undoes_overconfidence() -> None:
    """Logits three times too large are divided by about three and then well calibrated."""
    rng = np.random.default_rng(0)
    honest = rng.normal(size=(20000, 6)) * 1.5
    labels = (softmax(honest).cumsum(axis=1) > rng.random((20000, 1))).argmax(axis=1)
    divisor = temperature(3 * honest, labels)
    assert divisor == pytest.approx(3, rel=0.05)
    assert calibration_error(softmax(3 * honest), labels) > 0.1
    assert calibration_error(softmax(3 * honest / divisor), labels) < 0.02
