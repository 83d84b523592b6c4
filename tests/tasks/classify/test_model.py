"""What a classifier needs, from inference.yml and from `[parameters]`."""

from pathlib import Path
from typing import Any

import pytest

from paddlepool.contracts.errors import ConfigError
from paddlepool.tasks.classify.model import read_classifier
from tests.tasks.classify.models import INFERENCE_YML, model


def names(operations: list[list[Any]]) -> list[str]:
    return [name for name, _ in operations]


def values(operations: list[list[Any]], name: str) -> dict[str, Any]:
    return dict(dict(map(tuple, operations))[name])


@pytest.mark.parametrize(
    ("shape", "parameters", "made", "last"),
    [
        ((3, 20, 30), {}, (1, 3, 20, 30), "ToCHWImage"),
        ((20, 30, 3), {}, (1, 20, 30, 3), "NormalizeImage"),
        ((-1, -1, -1), {"size": [20, 30]}, (1, 3, 20, 30), "ToCHWImage"),
        ((1, 20, 30), {"channels": "GREY"}, (1, 1, 20, 30), "ToCHWImage"),
        ((20, 30), {"channels": "GREY", "size": [20, 30]}, (1, 20, 30), "ToCHWImage"),
        ((784,), {"drawing": True, "size": 28}, (1, 784), "ToCHWImage"),
        ((3 * 64,), {"size": 8}, (1, 192), "ToCHWImage"),
    ],
)
def test_the_input_has_the_shape_of_the_model(
    shape: tuple[int, ...], parameters: dict[str, Any], made: tuple[int, ...], last: str
) -> None:
    classifier = read_classifier(model(*shape, **parameters))
    assert classifier.shape == made
    assert names(classifier.operations)[-1] == last


def test_the_whole_picture_or_its_centre() -> None:
    whole = read_classifier(model(3, 20, 30)).operations
    assert names(whole) == ["ResizeImage", "NormalizeImage", "ToCHWImage"]
    assert values(whole, "ResizeImage")["size"] == (30, 20)  # width, height
    centre = read_classifier(model(3, 20, 30, resize_short=40, channels="BGR")).operations
    assert names(centre)[:3] == ["ResizeImage", "CropImage", "DecodeImage"]
    assert values(centre, "ResizeImage")["resize_short"] == 40
    assert values(centre, "CropImage")["size"] == (30, 20)


def test_numbers_of_channels() -> None:
    normal = values(read_classifier(model(3, 8, 8)).operations, "NormalizeImage")
    assert normal["mean"] == (0.485, 0.456, 0.406)
    one = read_classifier(model(3, 8, 8, mean=0, std=2, scale=1)).operations
    assert values(one, "NormalizeImage") == {"mean": (0, 0, 0), "std": (2, 2, 2), "scale": 1}
    grey = read_classifier(model(1, 8, 8, channels="GREY")).operations
    assert values(grey, "NormalizeImage")["std"] == (1.0,)


def test_labels_in_a_file(tmp_path: Path) -> None:
    """Beside config.toml, or in the version's directory, which comes first."""
    version = tmp_path / "1"
    version.mkdir()
    (tmp_path / "names.txt").write_text("a b\r\nc\r\nd\r\n\r\n", "utf-8")
    info = model(3, 8, 8, directory=version, labels="names.txt")
    assert read_classifier(info).labels == ["a b", "c", "d"]
    (version / "names.txt").write_text("一\n二\n三", "utf-8")
    assert read_classifier(info).labels == ["一", "二", "三"]


def with_file(tmp_path: Path, **parameters: Any) -> Any:
    (tmp_path / "inference.yml").write_text(INFERENCE_YML, "utf-8")
    return read_classifier(model(3, 32, 32, classes=(2,), directory=tmp_path, **parameters))


def test_inference_yml(tmp_path: Path) -> None:
    classifier = with_file(tmp_path)
    assert list(classifier.labels) == ["cat", "dog"]
    assert (classifier.top, classifier.softmax) == (2, False)
    assert classifier.shape == (1, 3, 32, 32)


def test_parameters_override_inference_yml(tmp_path: Path) -> None:
    classifier = with_file(
        tmp_path, top=1, softmax=True, labels=["x", "y"], mean=0, resize_short=50
    )
    assert (classifier.top, classifier.softmax, classifier.labels) == (1, True, ("x", "y"))
    assert values(classifier.operations, "NormalizeImage")["mean"] == (0, 0, 0)
    assert values(classifier.operations, "ResizeImage")["resize_short"] == 50
    with pytest.raises(ConfigError, match="takes x"):
        with_file(tmp_path, size=[16, 32])
    with pytest.raises(ConfigError, match="no operation DecodeImage"):
        with_file(tmp_path, channels="BGR")


@pytest.mark.parametrize(
    ("info", "says"),
    [
        (model(3, 8, 8, dtype="int64"), "one float32 tensor"),
        (model(3, -1, -1), "set parameters.size"),
        (model(3, 8, 8, size=9), r"takes x float32\(-1, 3, 8, 8\)"),
        (model(3, 8, 8, channels="GREY"), "does not say the size|1 x"),
        (model(3, 8, 8, classes=()), "a score for each class"),
        (model(3, 8, 8, classes=(3, 8, 8)), "a score for each class"),
        (model(3, 8, 8, labels=["a", "b"]), "3 scores for 2 labels"),
        (model(3, 8, 8, labels="none.txt"), "no file none.txt"),
        (model(3, 8, 8, labels="../secret"), "not the name of a file"),
        (model(3, 8, 8, mean=[0.5, 0.5]), "2 numbers for 3 channels"),
        (model(3, 8, 8, resize_short=7), "resize_short is 7"),
        (model(3, 8, 8, output="z"), "output is 'z'"),
        (model(3, 8, 8, drawing=True, channels="RGB"), "drawing needs"),
        (model(1, 8, 8, drawing=True, resize_short=9), "drawing does not go with"),
        (model(3, 8, 8, side=9), "side"),
    ],
)
def test_what_does_not_fit_is_refused(info: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read_classifier(info)


def test_another_result_is_refused(tmp_path: Path) -> None:
    text = INFERENCE_YML[: INFERENCE_YML.index("  Topk")] + "  name: DBPostProcess\n"
    (tmp_path / "inference.yml").write_text(text, "utf-8")
    with pytest.raises(ConfigError, match="needs Topk"):
        read_classifier(model(3, 32, 32, directory=tmp_path))
