"""What is read from inference.yml, and what is refused with which words."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from paddlepool.contracts.errors import ConfigError
from paddlepool.contracts.ports import ServedModelInfo
from paddlepool.tasks.transforms import preprocess
from paddlepool.tasks.transforms.config import (
    OPERATIONS,
    BoxesFromMap,
    LabelMap,
    TextFromClasses,
    TopK,
    inference_config,
    read_inference_config,
)

CLASSIFIER = """
Global: {model_name: PP-LCNet_x1_0_doc_ori}
Hpi:
  backend_configs:
    paddle_infer:
      trt_dynamic_shapes: &shapes
        x: [[1, 3, 224, 224], [1, 3, 224, 224], [8, 3, 224, 224]]
    tensorrt: {dynamic_shapes: *shapes}
PreProcess:
  transform_ops:
  - ResizeImage: {resize_short: 256}
  - CropImage: {size: 224}
  - NormalizeImage:
      channel_num: 3
      mean: [0.485, 0.456, 0.406]
      order: ''
      scale: 0.00392156862745098
      std: [0.229, 0.224, 0.225]
  - ToCHWImage: null
PostProcess:
  Topk: {topk: 5, label_list: [0, '90', '180', '270']}
"""

DETECTOR = """
Global: {model_name: PP-OCRv5_mobile_det}
PreProcess:
  transform_ops:
  - DecodeImage: {channel_first: false, img_mode: BGR}
  - DetLabelEncode: null
  - DetResizeForTest: {resize_long: 960}
  - NormalizeImage: {order: hwc, scale: 1./255.}
  - ToCHWImage: null
  - KeepKeys: {keep_keys: [image, shape]}
PostProcess: {name: DBPostProcess, thresh: 0.3, box_thresh: 0.6, unclip_ratio: 1.5}
"""

RECOGNISER = """
Global: {model_name: PP-OCRv5_mobile_rec}
PreProcess:
  transform_ops:
  - DecodeImage: {channel_first: false, img_mode: BGR}
  - MultiLabelEncode: {gtc_encode: NRTRLabelEncode}
  - RecResizeImg: {image_shape: [3, 48, 320], eval_mode: true}
PostProcess: {name: CTCLabelDecode, character_dict: ['　', 'a', '1']}
"""

SEGMENTER = """
Global: {model_name: PP-LiteSeg-T}
Deploy:
  output_op: argmax
  transforms:
  - {type: Normalize, mean: 0.5}
  - {type: Resize, target_size: [512, 256], keep_ratio: false, size_divisor: null}
"""


def changed(text: str, path: str, value: Any) -> str:
    """The document with another value at `path`; numbers are places of lists."""
    document = yaml.safe_load(text)
    *parents, last = [int(key) if key.isdigit() else key for key in path.split(".")]
    table = document
    for key in parents:
        table = table[key]
    table[last] = value
    return yaml.safe_dump(document)


def test_a_classifier() -> None:
    config = read_inference_config(CLASSIFIER)
    assert config.model_name == "PP-LCNet_x1_0_doc_ori"
    assert config.shapes["x"].largest == (8, 3, 224, 224)
    assert config.as_meta()[:2] == [
        [
            "ResizeImage",
            {"resize_short": 256, "size": None, "backend": "cv2", "interpolation": "LINEAR"},
        ],
        ["CropImage", {"size": (224, 224)}],
    ]
    assert config.postprocess == TopK(topk=5, label_list=("0", "90", "180", "270"))


def test_a_detector() -> None:
    config = read_inference_config(DETECTOR)
    names = [step.name for step in config.operations]
    assert names == ["DecodeImage", "DetResizeForTest", "NormalizeImage", "ToCHWImage"]
    assert config.as_meta()[2][1]["scale"] == 1 / 255
    assert config.postprocess == BoxesFromMap(unclip_ratio=1.5)
    assert config.shapes == {}


@pytest.mark.parametrize(
    ("name", "parameters", "limit"),
    [
        ("PP-OCRv5_mobile_det", {"resize_long": 960}, (960, "max")),
        ("PP-OCRv4_server_det", None, (960, "max")),
        ("PP-OCRv4_server_seal_det", {"resize_long": 960}, (960, "min")),
        ("PP-OCRv4_server_seal_det", None, (736, "min")),
        ("PP-OCRv5_mobile_det", {"limit_side_len": 64, "limit_type": "min"}, (64, "min")),
    ],
)
def test_the_limit_of_a_detector_depends_on_its_name(
    name: str, parameters: Any, limit: tuple[int, str]
) -> None:
    text = changed(DETECTOR, "Global.model_name", name)
    text = changed(text, "PreProcess.transform_ops.2.DetResizeForTest", parameters)
    resize = read_inference_config(text).as_meta()[1][1]
    assert (resize["limit_side_len"], resize["limit_type"]) == limit


def test_the_limit_of_the_pipeline_replaces_that_of_the_file() -> None:
    config = read_inference_config(DETECTOR)
    resize = config.overridden("DetResizeForTest", limit_side_len=64, limit_type="min")
    assert resize.as_meta()[1][1]["limit_side_len"] == 64
    assert resize.as_meta()[::2] == config.as_meta()[::2]
    with pytest.raises(ConfigError, match="limit_type"):
        config.overridden("DetResizeForTest", limit_type="least")
    with pytest.raises(ConfigError, match=r"has no operation Resize$"):
        config.overridden("Resize", target_size=32)


def test_a_recogniser() -> None:
    config = read_inference_config(RECOGNISER)
    assert config.as_meta()[1] == ["RecResizeImg", {"image_shape": (3, 48, 320)}]
    assert config.postprocess == TextFromClasses(character_dict=("\u3000", "a", "1"))


def test_a_model_of_paddleseg() -> None:
    config = read_inference_config(SEGMENTER)
    assert [step.name for step in config.operations] == ["Resize", "Normalize", "ToCHWImage"]
    assert config.as_meta()[0][1]["target_size"] == (512, 256)
    assert config.as_meta()[1][1]["mean"] == (0.5, 0.5, 0.5)
    assert config.postprocess == LabelMap()
    in_order = read_inference_config(SEGMENTER, paddlex_order=False)
    assert [step.name for step in in_order.operations] == ["Normalize", "Resize", "ToCHWImage"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "is not YAML"),
        (b"a: \xff", "is not YAML"),
        ("a: 2026-13-45", "is not YAML"),
        ("[" * 2000, "is not YAML"),
        (
            changed(CLASSIFIER, "PreProcess.transform_ops.2.NormalizeImage.scale", "1/0"),
            "NormalizeImage.scale",
        ),
        ("- a", "is not a table"),
        ("Global: {model_name: x}", "neither PreProcess.transform_ops"),
        (changed(CLASSIFIER, "Global.model_name", 5), "model_name is not a text"),
        (changed(CLASSIFIER, "PreProcess", [1]), "PreProcess is not a table"),
        (changed(CLASSIFIER, "PreProcess.transform_ops.1", {"Warp\x1b": 1}), "Warp.x1b is not sup"),
        (changed(CLASSIFIER, "PreProcess.transform_ops.1", "Crop"), "list of tables of one key"),
        (changed(CLASSIFIER, "PreProcess.transform_ops.1.CropImage.size", 0), "CropImage.size"),
        (
            changed(CLASSIFIER, "PreProcess.transform_ops.1.CropImage.sise", 9),
            "CropImage.sise: unknown key. If",
        ),
        (changed(CLASSIFIER, "PreProcess.transform_ops.0.ResizeImage", {}), "or size is missing"),
        (
            changed(CLASSIFIER, "PreProcess.transform_ops.0.ResizeImage.interpolation", "cubic"),
            "one of NEAREST, LINEAR",
        ),
        (
            changed(CLASSIFIER, "PreProcess.transform_ops.2.NormalizeImage.order", "chw"),
            "NormalizeImage.order: Input should be '' or 'hwc', received 'chw'. If the model needs",
        ),
        (changed(CLASSIFIER, "PreProcess.transform_ops.3", {"KeepKeys": 1}), "last operation"),
        (changed(CLASSIFIER, "PostProcess", {}), "0 operations instead of one"),
        (changed(CLASSIFIER, "PostProcess", {"Sigmoid": {}}), "supported are Topk, DBPostProcess"),
        (changed(CLASSIFIER, "PostProcess.Topk.label_list", [["a"]]), "label_list.0"),
        (changed(DETECTOR, "PostProcess.box_type", "poly"), "DBPostProcess.box_type"),
        (changed(RECOGNISER, "PostProcess.character_dict", [1]), "character_dict.0"),
        (changed(SEGMENTER, "Deploy.transforms", ["Resize"]), "Deploy.transforms is not a list"),
        (
            changed(CLASSIFIER, "Hpi.backend_configs.paddle_infer.trt_dynamic_shapes.x", [[1]]),
            "has not three shapes",
        ),
        (
            changed(CLASSIFIER, "Hpi.backend_configs.paddle_infer.trt_dynamic_shapes.x.0.2", "a"),
            "smallest",
        ),
    ],
)
def test_what_is_refused(text: str | bytes, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        read_inference_config(text)
    assert str(raised.value).startswith("inference.yml")


def test_an_error_about_an_operation_says_what_to_do() -> None:
    text = changed(CLASSIFIER, "PreProcess.transform_ops.1", {"WarpAffine": {}})
    with pytest.raises(ConfigError, match="/v2, or write a task"):
        read_inference_config(text)


def test_each_operation_has_parameters_and_a_function() -> None:
    assert list(OPERATIONS) == list(preprocess.OPERATIONS)


def test_the_file_of_a_model_version_is_read(tmp_path: Path) -> None:
    info = ServedModelInfo(name="m", version=1, directory=tmp_path, inputs=(), outputs=())
    assert inference_config(info) is None
    (tmp_path / "inference.yml").write_text(CLASSIFIER)
    assert inference_config(info) == read_inference_config(CLASSIFIER)
