"""Two outputs of a detector or a recogniser are compared by what they mean."""

from pathlib import Path

import numpy as np
import pytest

from paddlepool.contracts.ports import ServedModelInfo
from paddlepool.contracts.tensors import TensorSpec
from paddlepool.tasks.task import agreement_of, comparison_of

DETECTOR = """
PreProcess: {transform_ops: [{DetResizeForTest: {limit_side_len: 96}}, {ToCHWImage: }]}
PostProcess: {name: DBPostProcess, thresh: 0.3}
"""
RECOGNISER = """
PreProcess: {transform_ops: [{RecResizeImg: {image_shape: [3, 48, 64]}}]}
PostProcess: {name: CTCLabelDecode, character_dict: [a, b]}
"""


def model(directory: Path, text: str) -> ServedModelInfo:
    (directory / "inference.yml").write_text(text, "utf-8")
    one = (TensorSpec("x", "float32", (-1, 3, -1, -1)),)
    out = (TensorSpec("y", "float32", (-1, -1, -1)),)
    return ServedModelInfo(name="part", version=1, directory=directory, inputs=one, outputs=out)


def test_maps_agree_by_the_area_above_the_threshold(tmp_path: Path) -> None:
    agreement = agreement_of(model(tmp_path, DETECTOR))
    assert agreement is not None
    area = {"y": np.array([0.9, 0.4, 0.2, 0.0])}
    assert agreement(area, {"y": np.array([0.35, 0.8, 0.9, 0.1])}) == pytest.approx(2 / 3)
    assert agreement({"y": np.zeros(4)}, {"y": np.zeros(4)}) == 1.0


def test_classes_agree_where_there_is_a_character(tmp_path: Path) -> None:
    """Columns without a character on either side, most of a line, do not count."""
    agreement = agreement_of(model(tmp_path, RECOGNISER))
    assert agreement is not None
    classes, reference = [0, 0, 0, 1, 2, 0], [0, 0, 0, 1, 1, 1]
    eye = np.eye(3)
    assert agreement({"y": eye[classes]}, {"y": eye[reference]}) == pytest.approx(1 / 3)
    assert agreement({"y": eye[[0, 0]]}, {"y": eye[[0, 0]]}) == 1.0


@pytest.mark.parametrize("text", ["PreProcess: {transform_ops: [{Unknown: }]}", "[", "{}"])
def test_a_file_that_cannot_be_used_does_not_matter(tmp_path: Path, text: str) -> None:
    """Such a model is served as tensors."""
    info = model(tmp_path, text)
    assert agreement_of(info) is None
    assert comparison_of(info) is None


def test_samples_are_prepared_as_the_file_says(tmp_path: Path) -> None:
    comparison = comparison_of(model(tmp_path, RECOGNISER))
    assert comparison is not None
    [(_, first), (_, second)] = comparison.default_samples()
    assert first["x"].shape[:3] == second["x"].shape[:3] == (1, 3, 48)
    assert first["x"].shape[3] < second["x"].shape[3]
    picture = Path(__file__).parents[3] / "app" / "paddlepool" / "web" / "samples" / "cat.jpg"
    [(name, inputs)] = comparison.samples([picture])
    assert (name, inputs["x"].shape) == ("cat.jpg", (1, 3, 48, 72))
