"""Two outputs of a detector or a recogniser are compared by what they mean."""

from pathlib import Path

import numpy as np
import pytest

from paddlepool.contracts.ports import ServedModelInfo
from paddlepool.contracts.tensors import Array, Tensors, TensorSpec
from paddlepool.tasks.task import agreement_of, comparison_of
from paddlepool.tasks.transforms.agreement import answer_agreement

DETECTOR = """
PreProcess: {transform_ops: [{DetResizeForTest: {limit_side_len: 96}}, {ToCHWImage: }]}
PostProcess: {name: DBPostProcess, thresh: 0.3}
"""
RECOGNISER = """
PreProcess: {transform_ops: [{RecResizeImg: {image_shape: [3, 48, 64]}}]}
PostProcess: {name: CTCLabelDecode, character_dict: [a, b]}
"""


def model(directory: Path, text: str, *, outputs: int = 1) -> ServedModelInfo:
    (directory / "inference.yml").write_text(text, "utf-8")
    one = (TensorSpec("x", "float32", (-1, 3, -1, -1)),)
    out: tuple[TensorSpec, ...] = (TensorSpec("y", "float32", (-1, -1, -1)),)
    if outputs == 2:
        out = (TensorSpec("y", "int32", (-1, -1)), TensorSpec("score", "float32", (-1, -1)))
    return ServedModelInfo(name="part", version=1, directory=directory, inputs=one, outputs=out)


def test_maps_agree_by_the_area_above_the_threshold(tmp_path: Path) -> None:
    agreement = agreement_of(model(tmp_path, DETECTOR))
    assert agreement is not None
    line = {"y": areas((slice(4, 14), slice(4, 24)))}
    moved = {"y": areas((slice(6, 16), slice(6, 26)))}
    assert agreement(line, moved) == 1.0
    two = {"y": areas((slice(4, 14), slice(4, 24)), (slice(20, 30), slice(4, 24)))}
    assert agreement(line, two) == agreement(two, line) == pytest.approx(2 / 3)
    below = {"y": areas((slice(4, 14), slice(4, 24)), value=0.25)}
    assert agreement(line, below) == 0.0
    assert agreement(below, below) == 1.0


def areas(*places: tuple[slice, slice], value: float = 1.0) -> Array:
    """A map of `value` in these places, and 0 elsewhere."""
    result = np.zeros((1, 1, 32, 32), np.float32)
    for rows, columns in places:
        result[0, 0, rows, columns] = value
    return result


@pytest.mark.parametrize("scores", [True, False], ids=["scores", "best classes"])
def test_texts_agree_by_their_characters(tmp_path: Path, scores: bool) -> None:
    """Where a character stands in its line does not count, nor how many steps it takes."""
    agreement = agreement_of(model(tmp_path, RECOGNISER, outputs=1 if scores else 2))
    assert agreement is not None

    def lines(*classes: list[int]) -> Tensors:
        best = np.array(classes, np.int32)
        if scores:
            return {"y": np.eye(3, dtype=np.float32)[best]}
        return {"y": best, "score": np.ones(best.shape, np.float32)}

    text = lines([0, 1, 1, 2, 0, 2], [0, 0, 0, 0, 0, 0])
    assert agreement(text, lines([1, 2, 2, 0, 2, 2], [0, 0, 0, 0, 0, 0])) == 1.0
    assert agreement(text, lines([1, 2, 2, 2, 2, 2], [0, 0, 0, 0, 0, 0])) == pytest.approx(4 / 5)
    assert agreement(text, lines([0, 0, 0, 0, 0, 0], [0, 1, 1, 2, 0, 2])) == 0.0
    assert agreement(lines([0, 0]), lines([0, 0])) == 1.0


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


@pytest.mark.parametrize(
    ("lines", "expected", "share"),
    [
        ("", "", 1.0),
        ("one two", "one two", 1.0),
        ("one", "", 0.0),
        ("one two three four", "one three four", 24 / 27),
        ("one twa three", "one two three", 20 / 22),
        ("abcd", "acbd", 6 / 8),
    ],
)
def test_answers_agree_by_the_characters_of_their_lines(
    lines: str, expected: str, share: float
) -> None:
    """A line that is missing costs its own characters alone."""
    own, other = ([{"text": line} for line in text.split()] for text in (lines, expected))
    assert answer_agreement(own, other) == answer_agreement(other, own) == pytest.approx(share)
