"""Semantic segmentation models: labels, masks of some classes, and what is refused."""

import hashlib
import io
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from against_paddlex import Case, digest_of_result, generated_cases
from PIL import Image

from paddlepool.contracts.errors import (
    ConfigError,
    InvalidParameter,
    ModelOutputInvalid,
    ResolutionTooHigh,
)
from paddlepool.contracts.ports import ServedModelInfo
from paddlepool.contracts.tensors import Array, TensorSpec
from paddlepool.evidence.quality.ports import Source
from paddlepool.tasks.segment.evaluation import MaskComparison
from paddlepool.tasks.segment.pipeline import SegmentPipeline, mask_agreement
from paddlepool.tasks.segment.request import SegmentRequest, SegmentResult
from paddlepool.tasks.segment.stages import PALETTE
from paddlepool.tasks.segment.task import TASK
from paddlepool.tasks.transforms.config import inference_config
from paddlepool.tasks.transforms.masks import label_map
from paddlepool.tasks.transforms.stages import prepare
from tests.tasks.codecs import pictures
from tests.tasks.segment.serving import NetworkContext, Server, pixels_of, request_of

INFERENCE_YML = """
Global: {model_name: Colours-Seg}
Deploy:
  transforms:
  - {type: Resize, target_size: [64, 48], keep_ratio: false, size_divisor: 16}
  - {type: Normalize, mean: 0.5, std: 0.5}
"""
STORED = json.loads(
    (Path(__file__).parents[1] / "transforms" / "paddlex_results.json").read_text("utf-8")
)
CASES = {name: case for name, case in generated_cases().items() if case.kind == "segment"}
IMAGE = pictures.photo(120, 90)
PHOTO = pictures.encoded(IMAGE, "PNG")
SIZE = (90, 120)


def colours(tensor: Array) -> Array:
    """A network with four classes: 0 for dark, else 1 + the brightest channel."""
    labels = np.where(tensor.max(axis=1) < 0, 0, 1 + tensor.argmax(axis=1))
    return labels.astype(np.int32)


def version(
    directory: Path, *, document: str = INFERENCE_YML, **parameters: Any
) -> ServedModelInfo:
    (directory / "inference.yml").write_text(document, encoding="utf-8")
    return ServedModelInfo(
        name="colours",
        version=1,
        directory=directory,
        inputs=(TensorSpec("x", "float32", (-1, 3, -1, -1)),),
        outputs=(TensorSpec("d0", "int32", (-1, -1, -1)),),
        parameters=parameters,
    )


@pytest.fixture
def info(tmp_path: Path) -> ServedModelInfo:
    return version(tmp_path)


class Semantic:
    """The pipeline of such a model over the codec processes of `server`."""

    def __init__(self, server: Server, info: ServedModelInfo) -> None:
        self._server = server
        self._pipeline = SegmentPipeline(info, codecs=server.codecs)
        self._input = info.inputs[0].name

    def run(self, request: SegmentRequest, network: Any = colours) -> SegmentResult:
        deadline = time.monotonic() + 60
        context = NetworkContext(deadline=deadline, network=network, input=self._input)
        return self._server.awaited(self._pipeline.run(request, context))

    def ask(self, network: Any = colours, **options: str) -> SegmentResult:
        return self.run(request_of(PHOTO, options), network)


@pytest.fixture
def semantic(server: Server, info: ServedModelInfo) -> Semantic:
    return Semantic(server, info)


def expected_labels(info: ServedModelInfo) -> Any:
    """The labels by the operations of `inference.yml`, which are compared with PaddleX's."""
    config = inference_config(info)
    assert config is not None
    tensor = prepare(np.asarray(IMAGE), config.as_meta())
    assert tensor.shape == (1, 3, 48, 64)
    return label_map(colours(tensor), height=SIZE[0], width=SIZE[1])


def test_labels_are_grey_values(semantic: Semantic, info: ServedModelInfo) -> None:
    result = semantic.ask(output="labels")
    assert Image.open(io.BytesIO(result.image)).mode == "L"
    labels = expected_labels(info)
    assert set(np.unique(labels)) == {0, 1, 2, 3}
    assert np.array_equal(pixels_of(result), labels)
    assert (result.width, result.height, result.format) == (120, 90, "png")
    rows, columns = np.nonzero(labels)
    assert (result.box.top, result.box.left) == (rows.min(), columns.min())
    assert (result.box.height, result.box.width) == (np.ptp(rows) + 1, np.ptp(columns) + 1)


@pytest.mark.parametrize("name", CASES)
def test_labels_are_those_of_paddlex(server: Server, tmp_path: Path, name: str) -> None:
    """From an encoded picture, with the operations and the model's output of the stored results."""
    case: Case = CASES[name]
    info = version(tmp_path, document=yaml.safe_dump(dict(case.document)))
    body = pictures.encoded(Image.fromarray(case.picture), "PNG")
    inputs: list[Array] = []

    def network(tensor: Array) -> Any:
        inputs.append(tensor)
        return case.output

    result = Semantic(server, info).run(request_of(body, {"output": "labels"}), network)
    labels = pixels_of(result).astype(np.int32)
    digest = hashlib.sha256(labels.tobytes()).hexdigest()[:16]
    assert digest_of_result(digest) == STORED[name]["result"]
    assert np.array_equal(inputs[0], case.tensor())


def test_the_labels_of_a_smaller_result(semantic: Semantic, server: Server) -> None:
    body = pictures.encoded(pictures.photo(800, 600), "PNG")
    result = semantic.run(request_of(body, {"output": "labels", "size": "preview"}))
    assert pixels_of(result).shape == (result.height, result.width) == (433, 577)


@pytest.mark.parametrize(
    ("parameters", "classes"),
    [
        ({}, [1, 2, 3]),
        ({"background": 2}, [0, 1, 3]),
        ({"foreground": [1, 3]}, [1, 3]),
        ({"labels": ["dark", "red", "green", "blue"], "foreground": ["green"]}, [2]),
        ({"labels": "names.txt", "background": "red"}, [0, 2, 3]),
    ],
)
def test_a_mask_of_the_classes_that_count(
    server: Server, tmp_path: Path, parameters: dict[str, Any], classes: list[int]
) -> None:
    (tmp_path / "names.txt").write_text("dark\nred\ngreen\nblue\n", encoding="utf-8")
    info = version(tmp_path, **parameters)
    result = Semantic(server, info).ask(output="mask")
    foreground = np.isin(expected_labels(info), classes)
    assert foreground.any()
    assert not foreground.all()
    assert np.array_equal(pixels_of(result), np.where(foreground, 255, 0))
    assert result.confidence == 1.0


def test_a_cutout_is_made_as_from_a_matting_mask(semantic: Semantic, server: Server) -> None:
    """The same mask from a matting model gives the same bytes."""

    def foreground(_: Array) -> Array:
        size = (320, 320)
        return (np.indices(size).sum(axis=0) > 300).astype(np.float32)[None, None]

    matting = server.ask(PHOTO, foreground, crop="true", shadow="drop")
    assert matting.box.width > 0
    labelled = semantic.ask(
        lambda tensor: foreground(tensor)[0].astype(np.int64), crop="true", shadow="drop"
    )
    assert labelled.image == matting.image


def test_scores_become_labels(semantic: Semantic) -> None:
    def scores(tensor: Array) -> Array:
        return np.eye(4, dtype=np.float32)[colours(tensor)[0]].transpose(2, 0, 1)[None]

    assert semantic.ask(scores, output="labels") == semantic.ask(output="labels")


def test_paddlex_gets_labels_and_a_palette(semantic: Semantic, info: ServedModelInfo) -> None:
    request = SegmentRequest(body=PHOTO, output="mask", threshold=0.5, labels=True)
    result = semantic.run(request)
    labels = expected_labels(info)
    assert result.output == "labels"
    assert result.labels == labels.tobytes()
    image = Image.open(io.BytesIO(result.image))
    assert image.mode == "P"
    assert np.array_equal(np.asarray(image), labels)
    # PaddleX gives label 0 the first colour of the map, 128 0 0, and label 255 the last.
    assert PALETTE[:9] == bytes([128, 0, 0, 0, 128, 0, 128, 128, 0])
    assert len(PALETTE) == 768


def test_a_threshold_leaves_a_mask_without_partial_values_as_it_is(semantic: Semantic) -> None:
    assert semantic.ask(output="mask", threshold="0.5") == semantic.ask(output="mask")
    soft = pixels_of(semantic.ask(output="mask", refine="guided"))
    hard = pixels_of(semantic.ask(output="mask", refine="guided", threshold="0.5"))
    assert set(np.unique(hard)) == {0, 255} < set(np.unique(soft))


def test_a_picture_too_large_for_its_own_size_is_refused(server: Server, tmp_path: Path) -> None:
    document = "Deploy: {transforms: [{type: Normalize}]}"
    semantic = Semantic(server, version(tmp_path, document=document))
    body = pictures.encoded(Image.new("L", (4001, 4000)), "PNG")
    with pytest.raises(ResolutionTooHigh, match="up to 16,000,000 pixels, received 16,004,000"):
        semantic.run(request_of(body, {"output": "labels"}))


def test_a_matting_model_has_no_labels(server: Server) -> None:
    with pytest.raises(InvalidParameter, match="u2netp returns a mask of the foreground"):
        server.ask(PHOTO, output="labels")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("crop", "true"),
        ("refine", "guided"),
        ("threshold", "0.5"),
        ("scale", "50%"),
        ("shadow", "drop"),
        ("bg_color", "red"),
        ("crop_margin", "1px"),
    ],
)
def test_labels_are_not_edited(name: str, value: str) -> None:
    with pytest.raises(InvalidParameter, match=f"{name} has no effect on output=labels"):
        request_of(PHOTO, {"output": "labels", name: value})


def test_labels_are_not_compressed_with_loss() -> None:
    with pytest.raises(InvalidParameter, match="format must be one of png for output=labels"):
        request_of(PHOTO, {"output": "labels", "format": "webp"})


def test_labels_above_255_are_refused(semantic: Semantic) -> None:
    with pytest.raises(ModelOutputInvalid, match="the labels go up to 300"):
        semantic.ask(lambda tensor: colours(tensor) * 100, output="labels")


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"size": 320}, "parameters.size"),
        ({"background": 256}, "parameters.background"),
        ({"foreground": []}, "parameters.foreground"),
        ({"foreground": ["cat"]}, "has no class 'cat'"),
        ({"labels": "missing.txt"}, "no readable text file 'missing.txt'"),
        ({"labels": "../names.txt"}, "not the name of a file"),
        ({"output": "d9"}, "parameters.output is 'd9'"),
    ],
)
def test_parameters_that_do_not_fit(
    server: Server, tmp_path: Path, parameters: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        SegmentPipeline(version(tmp_path, **parameters), codecs=server.codecs)


def test_tensors_that_do_not_fit(info: ServedModelInfo, server: Server) -> None:
    grey = replace(info, inputs=(TensorSpec("x", "float32", (-1, 1, -1, -1)),))
    with pytest.raises(ConfigError, match="feeds one float32 tensor"):
        SegmentPipeline(grey, codecs=server.codecs)
    flat = replace(info, outputs=(TensorSpec("d0", "float32", (-1, 2)),))
    with pytest.raises(ConfigError, match="expects labels"):
        SegmentPipeline(flat, codecs=server.codecs)
    (info.directory / "inference.yml").write_text(
        "PreProcess: {transform_ops: [ToCHWImage: null]}\nPostProcess: {Topk: {topk: 1}}",
        encoding="utf-8",
    )
    with pytest.raises(ConfigError, match="has TopK after the model"):
        SegmentPipeline(info, codecs=server.codecs)


def test_two_outputs_agree_by_their_equal_labels(info: ServedModelInfo, tmp_path: Path) -> None:
    (tmp_path / "photo.png").write_bytes(PHOTO)
    comparison = MaskComparison(info)
    [(name, inputs)] = comparison.samples([tmp_path / "photo.png"])
    assert (name, inputs["x"].shape) == ("photo.png", (1, 3, 48, 64))
    labels = colours(inputs["x"])
    other = labels.copy()
    other[:, :12] = (other[:, :12] + 1) % 4
    for agreement in (comparison.agreement, mask_agreement(info)):
        assert agreement({"d0": labels}, {"d0": labels}) == 1.0
        assert agreement({"d0": labels}, {"d0": other}) == 0.75
    assert comparison.agreement_name == "equal labels"
    assert TASK.quality is not None
    assert TASK.quality(info, Source(data=tmp_path)) is None  # there are no known labels
