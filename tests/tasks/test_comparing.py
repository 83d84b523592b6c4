"""What comparisons of predictors get from the tasks: their inputs, and how far outputs agree."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from paddlepool.contracts.errors import ConfigError, ImageUnreadable
from paddlepool.contracts.tensors import Tensors
from paddlepool.evidence.comparison.measure import TaskComparison
from paddlepool.models.repository.layout import ModelRepository
from paddlepool.tasks.task import comparison_of

MODELS = Path(__file__).parents[2] / "model_repo"


def task_of(model: str) -> TaskComparison:
    repository = ModelRepository(MODELS)
    task = comparison_of(repository.read(model, repository.versions(model)[0]).info())
    assert task is not None
    return task


def test_pictures_become_the_networks_input(tmp_path: Path) -> None:
    """As in serving: 320 × 320, transparency as white."""
    picture = np.zeros((40, 60, 4), np.uint8)
    picture[:, 30:] = (10, 200, 30, 255)
    file = tmp_path / "half.png"
    assert cv2.imwrite(str(file), picture)
    [(name, inputs)] = task_of("u2netp").samples([file])
    [tensor] = inputs.values()
    assert name == "half.png"
    assert tensor.shape == (1, 3, 320, 320)
    assert float(tensor[0, 0, 0, 0]) == pytest.approx((1 - 0.485) / 0.229, abs=1e-4)


def test_bad_files_are_refused(tmp_path: Path) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(40))
    with pytest.raises(ConfigError, match="cannot be read"):
        task_of("u2netp").samples([tmp_path / "missing.png"])
    with pytest.raises(ImageUnreadable):
        task_of("u2netp").samples([broken])
    with pytest.raises(ConfigError, match="as UTF-8 text"):
        task_of("emotion").samples([broken])


def test_every_line_of_text_is_a_sample(tmp_path: Path) -> None:
    """Empty lines are passed over; each text lies in its length bucket."""
    file = tmp_path / "texts.txt"
    file.write_text("今天真好\n\n" + "很长的话" * 20 + "\n", "utf-8")
    short, long = (inputs["input_ids"] for _, inputs in task_of("emotion").samples([file]))
    assert short.shape == (1, 16)
    assert long.shape == (1, 48)


def masks(*rows: tuple[float, ...]) -> Tensors:
    return {"d0": np.array([[rows]], np.float32)}


def test_masks_agree_by_intersection_over_union() -> None:
    task = task_of("u2netp")
    left = masks((1.0, 1.0), (0.0, 0.0))
    assert task.agreement(left, left) == 1.0
    assert task.agreement(masks((1.0, 0.0), (0.0, 0.0)), left) == 0.5
    assert task.agreement(masks((0.1, 0.1), (0.1, 0.1)), masks((0.2, 0.2), (0.2, 0.2))) == 1.0


def test_labels_agree_by_their_best() -> None:
    """Scores may differ as long as the same label wins."""
    task = task_of("emotion")
    expected = {"logits": np.array([[3.0, 1.0], [0.0, 1.0]], np.float32)}
    found = {"logits": np.array([[2.0, 1.5], [1.0, 0.0]], np.float32)}
    assert task.agreement(found, expected) == 0.5
