"""The parts of one composed model, read from their `inference.yml` files and `[parameters]`."""

from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from paddlepool.contracts.errors import ConfigError
from paddlepool.contracts.ports import ServedModelInfo
from paddlepool.models.repository.config import parse_parameters
from paddlepool.tasks.ocr.request import MOST_SIDE, OcrRequest, Share
from paddlepool.tasks.transforms.config import (
    FILE,
    BoxesFromMap,
    DetResizeForTest,
    InferenceConfig,
    Positive,
    RecResizeImg,
    TextFromClasses,
    TopK,
    inference_config,
)
from paddlepool.tasks.transforms.labels import characters_of

DETECT, RECOGNISE, ORIENT = "detect", "recognise", "orient"
ANGLES = {"0", "90", "180", "270"}
LEAST_SIDE = 64
"""Shorter side of the detector's input, in pixels; as PaddleX's pipeline by default."""


class Parameters(BaseModel):
    """`[parameters]` of the composed model; None stands for the value of the detector's file.

    `most_side` limits the sides of the detector's input, on which the memory of a run depends; see
    stages.within(). `widths` decides how wide a line becomes, see reader.padded(), and whether
    large pages are reduced, see stages.reduction().
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    limit: Annotated[int, Field(ge=32, le=MOST_SIDE)] | None = None
    limit_type: Literal["min", "max"] | None = None
    thresh: Share | None = None
    box_thresh: Share | None = None
    unclip_ratio: Positive | None = None
    most_side: Annotated[int, Field(ge=32, le=MOST_SIDE)] = 2560
    widths: Literal["steps", "paddlex"] = "steps"


class Part(NamedTuple):
    """The content of one model's `inference.yml`, and the name of the model's input."""

    config: InferenceConfig
    input: str


class Parts:
    """The parts of a composed model, with what their files say about them.

    `boxes` are the fields of the detector's BoxesFromMap. `line_height` and `least_width` are those
    of the recogniser's input in pixels, `characters` its characters by class number. `angles` has
    the degrees by class number. Without the part `orient`, it is empty and `orienter` is None.
    """

    def __init__(self, info: ServedModelInfo) -> None:
        """Read the parts' inference.yml and the composed model's `[parameters]`.

        Raises ConfigError if a file is missing, or if a file or parameter does not fit the task.
        """
        self.parameters = parse_parameters(info, Parameters)
        self.detector = _read(info.parts[DETECT], BoxesFromMap)
        _parameters(self.detector, DetResizeForTest)
        self.boxes = self.detector.config.postprocess.model_dump()
        self.recogniser = _read(info.parts[RECOGNISE], TextFromClasses)
        _, self.line_height, self.least_width = _parameters(
            self.recogniser, RecResizeImg
        ).image_shape
        characters = self.recogniser.config.postprocess.model_dump()["character_dict"]
        self.characters = characters_of(characters)
        _check_classes(info.parts[RECOGNISE], len(self.characters))
        self.orienter: Part | None = None
        self.angles: tuple[int, ...] = ()
        if ORIENT in info.parts:
            self.orienter = _read(info.parts[ORIENT], TopK)
            labels = self.orienter.config.postprocess.model_dump()["label_list"] or ()
            if set(labels) != ANGLES:
                raise ConfigError(f"{info.name}: the labels of {ORIENT} are not 0, 90, 180, 270")
            self.angles = tuple(int(label) for label in labels)

    def detection(self, payload: OcrRequest) -> dict[str, Any]:
        """Return the parameters of the detection: the request's, else the model's, else the file's.

        These are limit, limit_type, thresh, box_thresh, unclip_ratio, most_side and the other
        fields of BoxesFromMap. A limit that a request has without a type limits the longest side.
        """
        resize = _parameters(self.detector, DetResizeForTest)
        own = {"limit": resize.limit_side_len, "limit_type": resize.limit_type, **self.boxes}
        chosen = self.parameters.model_dump(exclude_none=True, exclude={"widths"})
        requested = {
            name: value
            for name in ("limit", "limit_type", "thresh", "box_thresh", "unclip_ratio")
            if (value := getattr(payload, name)) is not None
        }
        if "limit" in requested:
            requested.setdefault("limit_type", "max")
        return own | chosen | requested

    def least_side(self, payload: OcrRequest) -> int:
        """Return the least shorter side of the detector's input; 0 for PaddleX's own input.

        The picture of a single line would otherwise be too low for the detector, or be squeezed to
        a multiple of 32.
        """
        exact = payload.limit_type is not None or self.parameters.widths == "paddlex"
        return 0 if exact else LEAST_SIDE


def _read(info: ServedModelInfo, postprocess: type[BaseModel]) -> Part:
    config = inference_config(info)
    if config is None:
        raise ConfigError(f"{info.name} has no {FILE}, which the ocr task needs")
    if not isinstance(config.postprocess, postprocess):
        raise ConfigError(f"{info.name}: the post-processing is no {postprocess.__name__}")
    if len(info.inputs) != 1 or info.inputs[0].dtype != "float32":
        raise ConfigError(f"{info.name}: the ocr task feeds one float32 tensor")
    return Part(config, info.inputs[0].name)


def _parameters(part: Part, kind: type[BaseModel]) -> Any:
    """Return the parameters of the part's first operation that has parameters of this `kind`.

    Raises ConfigError if there is no such operation.
    """
    for operation in part.config.operations:
        if isinstance(operation.parameters, kind):
            return operation.parameters
    raise ConfigError(f"{part.config.model_name}: {FILE} has no operation {kind.__name__}")


def _check_classes(info: ServedModelInfo, count: int) -> None:
    """Raise ConfigError unless the recogniser returns scores of `count` classes, or best classes.

    Best classes are two outputs (lines, steps): the number of the best class, and its score.
    """
    shapes = [spec.shape for spec in info.outputs]
    if [len(shape) for shape in shapes] == [3] and shapes[0][2] in (-1, count):
        return
    kinds = sorted(spec.dtype[:3] for spec in info.outputs if len(spec.shape) == 2)
    if kinds != ["flo", "int"]:
        raise ConfigError(
            f"{info.name} returns {', '.join(f'{s.dtype}{s.shape}' for s in info.outputs)}; the "
            f"ocr task expects scores (lines, steps, {count}), or the best class of each step as "
            "an integer and a score (lines, steps)"
        )
