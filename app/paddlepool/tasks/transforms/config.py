"""Reads `inference.yml`, the description that PaddleX and its libraries export with a model.

The file names the operations before and after the model. PaddleX 3.7.2 defines their parameters and
defaults in `paddlex/inference/models`. This module loads no picture library.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from paddlepool.contracts.errors import ConfigError
from paddlepool.contracts.ports import ServedModelInfo
from paddlepool.contracts.sentences import printable, sentence
from paddlepool.models.repository.config import faults_of

FILE = "inference.yml"
MOST_SIDE = 4096
"""Maximum of a side in pixels that an `inference.yml` may set."""
WITHOUT_IT = "serve the model as tensors through /v2, or write a task (docs/new-task.md)"

_MAX_LIMIT_DETECTORS = re.compile(r"PP-OCRv[3-6]_(?:server|mobile|medium|small|tiny)_det")
"""Matches the names of the detectors whose `resize_long` PaddleX reads as an upper limit."""


def _pair(value: object) -> object:
    return (value, value) if isinstance(value, int) else value


def _three(value: object) -> object:
    return (value,) * 3 if isinstance(value, int | float) else value


def _upper(value: object) -> object:
    return value.upper() if isinstance(value, str) else value


def _text(value: object) -> object:
    return str(value) if isinstance(value, int | float) else value


def _fraction(value: object) -> object:
    """Return the number of a fraction such as "1./255." (PaddleOCR's scale), other values as is."""
    if isinstance(value, str) and (match := re.fullmatch(r"\s*([\d.]+)\s*/\s*([\d.]+)\s*", value)):
        above, below = float(match[1]), float(match[2])
        return above / below if below else value
    return value


Side = Annotated[int, Field(ge=1, le=MOST_SIDE)]
Size = Annotated[tuple[Side, Side], BeforeValidator(_pair)]
"""Width and height; one number stands for both."""
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Mean = Annotated[
    tuple[Annotated[float, Field(allow_inf_nan=False)], ...],
    BeforeValidator(_three),
    Field(min_length=3, max_length=3),
]
Deviation = Annotated[
    tuple[Positive, ...], BeforeValidator(_three), Field(min_length=3, max_length=3)
]

IMAGENET_MEAN, IMAGENET_DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Parameters(BaseModel):
    """Base of the parameters of an operation. Unknown parameters are rejected."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Nothing(Parameters):
    """An operation without parameters."""


class DecodeImage(Parameters):
    """Parameters of `DecodeImage`: `img_mode` is the order of channels that the model expects."""

    img_mode: Literal["BGR", "RGB"] = "BGR"
    channel_first: Literal[False] = False


class ReadImage(Parameters):
    """Parameters of `ReadImage`: `format` is the order of channels that the model expects."""

    format: Literal["BGR", "RGB"] = "BGR"


class ResizeImage(Parameters):
    """PaddleClas: resize so that the shorter side is `resize_short`, or to `size` without it.

    At least one of them is set. `size` is (width, height).
    """

    resize_short: Side | None = None
    size: Size | None = None
    backend: Literal["cv2", "pil"] = "cv2"
    interpolation: Annotated[str, BeforeValidator(_upper)] = "LINEAR"

    @model_validator(mode="after")
    def _check(self) -> "ResizeImage":
        if not (self.resize_short or self.size):
            raise ValueError("resize_short or size is missing")
        if self.interpolation not in INTERPOLATIONS[self.backend]:
            raise ValueError(
                f"interpolation with {self.backend} is one of "
                f"{', '.join(INTERPOLATIONS[self.backend])}"
            )
        return self


INTERPOLATIONS: dict[str, tuple[str, ...]] = {
    "cv2": ("NEAREST", "LINEAR", "BILINEAR", "BICUBIC", "AREA", "LANCZOS4"),
    "pil": ("NEAREST", "BILINEAR", "BICUBIC", "BOX", "LANCZOS4"),
}
"""Names of interpolations by backend. PaddleX does not know BILINEAR of cv2, PaddleClas does."""


class Resize(Parameters):
    """PaddleSeg: resize to `target_size` (width, height), or to at most this with `keep_ratio`.

    With `keep_ratio`, the larger number limits the longer side, and the smaller number the shorter
    side. Then the sides are rounded up to multiples of `size_divisor`, if it is set. With a
    `target_size` of -1, the picture keeps its size, and `size_divisor` has no effect.
    """

    target_size: Size | Literal[-1] = -1
    keep_ratio: bool = True
    size_divisor: Annotated[int, Field(ge=1, le=MOST_SIDE)] | None = 32
    interp: Annotated[
        Literal["NEAREST", "LINEAR", "BICUBIC", "AREA", "LANCZOS4"], BeforeValidator(_upper)
    ] = "LINEAR"


class CropImage(Parameters):
    """PaddleClas: cut out the centre of the picture; `size` is (width, height)."""

    size: Size = (224, 224)


class CenterCrop(Parameters):
    """PaddleX, for models of videos: crop to a square in the centre with sides of `target_size`.

    `do_round` rounds the position of the square's corner instead of rounding it down.
    """

    target_size: Side
    do_round: bool = True


class NormalizeImage(Parameters):
    """PaddleClas and PaddleOCR: (value * scale - mean) / std, for each channel."""

    mean: Mean = IMAGENET_MEAN
    std: Deviation = IMAGENET_DEVIATION
    scale: Annotated[Positive, BeforeValidator(_fraction)] = 1 / 255
    order: Literal["", "hwc"] = ""
    channel_num: Literal[3] = 3


class Normalize(Parameters):
    """PaddleSeg: (value / 255 - mean) / std, for each channel.

    A single number for `mean` or `std` applies to all channels.
    """

    mean: Mean = (0.5, 0.5, 0.5)
    std: Deviation = (0.5, 0.5, 0.5)


class DetResizeForTest(Parameters):
    """PaddleOCR's detectors: resize to a limit on a side, or to a fixed size.

    `image_shape` (height, width) fixes the size or, with `keep_ratio`, only the height. Without an
    `image_shape`, `limit_side_len` limits a side as `limit_type` says; det_resize_for_test()
    describes the types. `resize_long` is the default of `limit_side_len`. detector_limit() sets
    what is still missing.
    """

    limit_side_len: Side | None = None
    limit_type: Literal["min", "max", "resize_long"] | None = None
    resize_long: Side | None = None
    image_shape: tuple[Side, Side] | None = None
    keep_ratio: bool = False


class RecResizeImg(Parameters):
    """PaddleOCR's recognisers: resize a line of text, and scale its values to -1 to 1.

    `image_shape` is (channels, height, minimum width). Other parameters are ignored.
    """

    # PaddleX ignores every other parameter, and PaddleOCR writes several that are for training.
    model_config = ConfigDict(frozen=True, extra="ignore")

    image_shape: tuple[Literal[3], Side, Side] = (3, 48, 320)


OPERATIONS: dict[str, type[Parameters]] = {
    "DecodeImage": DecodeImage,
    "ReadImage": ReadImage,
    "ResizeImage": ResizeImage,
    "Resize": Resize,
    "DetResizeForTest": DetResizeForTest,
    "CropImage": CropImage,
    "CenterCrop": CenterCrop,
    "RecResizeImg": RecResizeImg,
    "OCRReisizeNormImg": RecResizeImg,
    "NormalizeImage": NormalizeImage,
    "Normalize": Normalize,
    "ToCHWImage": Nothing,
    "Permute": Nothing,
}
"""The parameters of each operation, in the order in which PaddleX runs the operations."""

CHANNELS_FIRST = ("RecResizeImg", "OCRReisizeNormImg", "ToCHWImage", "Permute")
"""The operations after which the channels are the first axis, as models expect them."""

_NO_EFFECT = re.compile(r"KeepKeys|\w*LabelEncode")
"""Matches the names of operations that have an effect in training alone."""


class TopK(Parameters):
    """`Topk`: at most `topk` labels in an answer; `label_list` names the classes, or is None."""

    topk: Annotated[int, Field(ge=1)] = 5
    label_list: tuple[Annotated[str, BeforeValidator(_text)], ...] | None = None


class BoxesFromMap(Parameters):
    """`DBPostProcess`: how quadrangles are made from a map of probabilities."""

    thresh: Share = 0.3
    box_thresh: Share = 0.6
    unclip_ratio: Positive = 2.0
    max_candidates: Annotated[int, Field(ge=1, le=10_000)] = 1000
    use_dilation: Literal[False] = False
    score_mode: Literal["fast"] = "fast"
    box_type: Literal["quad"] = "quad"


class TextFromClasses(Parameters):
    """`CTCLabelDecode`: the n characters of the classes 1 to n; 0 is the blank, n + 1 the space."""

    character_dict: tuple[str, ...] = Field(min_length=1)


class LabelMap(Parameters):
    """The class of each pixel. The files of PaddleSeg have no name for this operation."""


POSTPROCESS: dict[str, type[Parameters]] = {
    "Topk": TopK,
    "DBPostProcess": BoxesFromMap,
    "CTCLabelDecode": TextFromClasses,
}
"""The parameters of each operation after the model."""

Shape = tuple[Annotated[int, Field(ge=1)], ...]


class DynamicShapes(BaseModel):
    """The smallest, the usual and the largest shape of an input."""

    model_config = ConfigDict(frozen=True)

    smallest: Shape
    usual: Shape
    largest: Shape


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation before the model, a key of OPERATIONS, with its parameters."""

    name: str
    parameters: Parameters


@dataclass(frozen=True, slots=True)
class InferenceConfig:
    """The content of an `inference.yml`.

    `model_name` is empty if the file has none. `shapes` has the shapes of each input, by name, or
    is empty.
    """

    model_name: str
    operations: tuple[Operation, ...]
    postprocess: Parameters
    shapes: Mapping[str, DynamicShapes]

    def as_meta(self) -> list[list[Any]]:
        """Return the operations as JSON values: lists [name, parameters], for `stages.prepare`."""
        return [[step.name, step.parameters.model_dump()] for step in self.operations]

    def overridden(self, name: str, **parameters: Any) -> "InferenceConfig":
        """Return a copy in which the operation `name` has other values for these parameters.

        For example, `overridden("DetResizeForTest", limit_side_len=64, limit_type="min")` makes the
        change that PaddleX's OCR pipeline makes. Raises ConfigError for a wrong value, or if there
        is no such operation.
        """
        if name not in [step.name for step in self.operations]:
            raise ConfigError(f"{FILE} has no operation {name}")
        return replace(
            self,
            operations=tuple(
                _operation(name, {**step.parameters.model_dump(), **parameters}, self.model_name)
                if step.name == name
                else step
                for step in self.operations
            ),
        )


def read_inference_config(text: str | bytes, *, paddlex_order: bool = True) -> InferenceConfig:
    """Parse the content of an `inference.yml`.

    The operations get the order in which PaddleX runs them, that of OPERATIONS. Without
    `paddlex_order`, they keep the order of the file. Operations for training alone are left out.
    Raises ConfigError, which names the fault and usually a remedy, for a file that cannot be used.
    """
    import yaml  # most servers have no such file

    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{FILE} is not YAML: {sentence(str(error))}") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{FILE} is not a table of keys")
    name = _table(document, "Global").get("model_name", "")
    if not isinstance(name, str):
        raise ConfigError(f"{FILE}: Global.model_name is not a text")
    steps = [_operation(*step, name) for step in _steps(document) if not _NO_EFFECT.match(step[0])]
    if paddlex_order:
        places = list(OPERATIONS)
        steps.sort(key=lambda step: places.index(step.name))
    if [step.name for step in steps if step.name in CHANNELS_FIRST] != [
        step.name for step in steps[-1:]
    ]:
        raise ConfigError(
            f"{FILE}: the last operation, and no other, must be one of {', '.join(CHANNELS_FIRST)}"
        )
    return InferenceConfig(name, tuple(steps), _postprocess(document), _shapes(document))


def inference_config(info: ServedModelInfo) -> InferenceConfig | None:
    """Read the `inference.yml` of a model version; None if it has none.

    Raises ConfigError as read_inference_config() does.
    """
    path = info.directory / FILE
    return read_inference_config(path.read_bytes()) if path.is_file() else None


def _table(document: Mapping[str, Any], *path: str) -> dict[str, Any]:
    """Return the table at `path`, a key for each level; empty if it is missing.

    Raises ConfigError if a value on the path is no table.
    """
    value: Any = document
    for depth, key in enumerate(path, 1):
        value = value.get(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise ConfigError(f"{FILE}: {'.'.join(path[:depth])} is not a table of keys")
    return dict(value)


def _steps(document: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the name and the parameters of each operation.

    They are listed in Deploy.transforms by PaddleSeg, and a ToCHWImage is added to them. All other
    files have PreProcess.transform_ops. Raises ConfigError if there is no list of operations.
    """
    if deploy := _table(document, "Deploy").get("transforms", None):  # PaddleSeg
        if isinstance(deploy, list) and all(isinstance(step, dict) for step in deploy):
            rest = [{key: step[key] for key in step if key != "type"} for step in deploy]
            names = [str(step.get("type")) for step in deploy]
            return [*zip(names, rest, strict=True), ("ToCHWImage", None)]
        raise ConfigError(f"{FILE}: Deploy.transforms is not a list of tables")
    listed = _table(document, "PreProcess").get("transform_ops")
    if not isinstance(listed, list):
        raise ConfigError(
            f"{FILE} has neither PreProcess.transform_ops (PaddleClas, PaddleOCR) nor "
            f"Deploy.transforms (PaddleSeg); {WITHOUT_IT}"
        )
    if all(isinstance(step, dict) and len(step) == 1 for step in listed):
        return [(str(name), values) for step in listed for name, values in step.items()]
    raise ConfigError(f"{FILE}: PreProcess.transform_ops is not a list of tables of one key each")


def _operation(name: str, values: Any, model_name: str) -> Operation:
    parameters = _parse("operation", name, values, OPERATIONS)
    if isinstance(parameters, DetResizeForTest) and parameters.image_shape is None:
        parameters = detector_limit(parameters, model_name)
    return Operation(name, parameters)


def detector_limit(parameters: DetResizeForTest, model_name: str) -> DetResizeForTest:
    """Return the parameters with PaddleX's defaults for the number and the type of the limit.

    These are an upper limit of 960 pixels for the detectors from PP-OCRv3 to PP-OCRv6, and a lower
    limit of 736 for others. If the file has a `resize_long`, it is the default number.
    """
    if _MAX_LIMIT_DETECTORS.fullmatch(model_name):
        side, kind = 960, "max"
    else:
        side, kind = 736, "min"
    side = parameters.limit_side_len or parameters.resize_long or side
    limit = {"limit_side_len": side, "limit_type": parameters.limit_type or kind}
    return parameters.model_copy(update=limit)


def _postprocess(document: Mapping[str, Any]) -> Parameters:
    table = _table(document, "PostProcess")
    if isinstance(name := table.pop("name", None), str):  # PaddleOCR
        return _parse("post-processing", name, table, POSTPROCESS)
    if not table and "Deploy" in document:
        return LabelMap()
    if len(table) != 1:
        raise ConfigError(
            f"{FILE}: PostProcess has {len(table)} operations instead of one; {WITHOUT_IT}"
        )
    [(name, values)] = table.items()
    return _parse("post-processing", str(name), values, POSTPROCESS)


def _parse(what: str, name: str, values: Any, table: Mapping[str, type[Parameters]]) -> Parameters:
    shown = printable(name[:100])
    if name not in table:
        raise ConfigError(
            f"{FILE}: the {what} {shown} is not supported; supported are {', '.join(table)}. "
            f"Without it, {WITHOUT_IT}"
        )
    try:
        return table[name].model_validate({} if values is None else values)
    except ValidationError as error:
        raise ConfigError(
            f"{FILE}: {printable(faults_of(error, shown, whole=shown))}. If the model needs this, "
            f"{WITHOUT_IT}"
        ) from None


def _shapes(document: Mapping[str, Any]) -> dict[str, DynamicShapes]:
    path = ("Hpi", "backend_configs", "paddle_infer", "trt_dynamic_shapes")
    result = {}
    for name, shapes in _table(document, *path).items():
        if not isinstance(shapes, Sequence) or len(shapes) != 3:
            raise ConfigError(f"{FILE}: {'.'.join(path)}: an input has not three shapes")
        smallest, usual, largest = shapes
        try:
            result[str(name)] = DynamicShapes(smallest=smallest, usual=usual, largest=largest)
        except ValidationError as error:
            raise ConfigError(f"{FILE}: {printable(faults_of(error, *path))}") from None
    return result
