"""Reads what a classifier needs: how its input is made, its labels, and what its output means.

It comes from the model's `inference.yml` and from `[parameters]` of config.toml. A parameter takes
precedence over the file. This module loads no picture library.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from paddlepool.contracts.errors import ConfigError
from paddlepool.contracts.ports import ServedModelInfo
from paddlepool.contracts.tensors import TensorSpec
from paddlepool.models.repository.config import parse_parameters

INFERENCE_FILE = "inference.yml"
MOST_SIDE = 4096
MOST_LABELS_BYTES = 4 << 20
MAX_TOP = 1_000
DEFAULT_TOP = 5
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}

Side = Annotated[int, Field(ge=1, le=MOST_SIDE)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Top = Annotated[int, Field(ge=1, le=MAX_TOP)]
Operations = list[list[Any]]
"""Lists [name, parameters]: the operations that make the model's input, keys of OPERATIONS in
`stages`."""


class Parameters(BaseModel):
    """`[parameters]` of a classifier, described in docs/classify.md.

    None stands for the value of inference.yml or, in a model without this file, for the default.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    size: Side | tuple[Side, Side] | None = None
    """Height and width in pixels to which a picture is brought; one number stands for both.
    Default: those of the model's input."""
    resize_short: Side | None = None
    """The shorter side is resized to this number of pixels, then the centre is cropped to `size`.
    Default: the picture is stretched to `size`."""
    interpolation: Literal["NEAREST", "BILINEAR", "BICUBIC", "BOX", "LANCZOS4"] | None = None
    channels: Literal["RGB", "BGR", "GREY"] | None = None
    scale: Positive | None = None
    mean: Finite | Annotated[tuple[Finite, ...], Field(min_length=1, max_length=3)] | None = None
    std: Positive | Annotated[tuple[Positive, ...], Field(min_length=1, max_length=3)] | None = None
    drawing: bool = False
    """Finds strokes on a plain ground, and makes them white on black, as MNIST's digits are."""
    labels: str | Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Labels, or the name of a file with a label on each line."""
    top: Top | None = None
    softmax: bool | None = None
    output: str = Field(default="", min_length=1)
    """Name of the output with the scores; left out, it is the first output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Classifier:
    """How a picture becomes the model's input, and how the output becomes labels with scores.

    `input` and `output` are names. `operations` make the input, whose `shape` is that for one
    picture, or None if it depends on the picture. `labels` may have fewer items than the output has
    classes. `top` is the number of labels in an answer. `softmax` is an argument of
    probabilities().
    """

    input: str
    output: str
    operations: Operations
    shape: tuple[int, ...] | None
    labels: Sequence[str]
    top: int
    softmax: bool | None


def read_classifier(info: ServedModelInfo) -> Classifier:
    """Read the model's `[parameters]`, its inference.yml and its file of labels, if there are any.

    Raises ConfigError if one of them is wrong or does not fit the model.
    """
    parameters = parse_parameters(info, Parameters)
    tensor = _input(info)
    output = _output(info, parameters.output)
    labels: Sequence[str] | None = None
    top, softmax = None, None
    if (info.directory / INFERENCE_FILE).is_file():
        operations, labels, top = _read_file(info, parameters)
        softmax = False
    else:
        operations = _operations(info, parameters, tensor)
    if parameters.labels is not None:
        labels = parameters.labels
        if isinstance(labels, str):
            labels = _labels_of(info, labels)
    classes = output.shape[1]
    if labels is not None and classes != -1:
        # inference.yml may name fewer labels than there are classes, [parameters] may not.
        missing = parameters.labels is not None and len(labels) < classes
        if missing or len(labels) > classes:
            raise ConfigError(f"{info.name} returns {classes} scores for {len(labels)} labels")
    operations, shape = _fitted(info, tensor, operations)
    return Classifier(
        input=tensor.name,
        output=output.name,
        operations=operations,
        shape=shape,
        labels=labels or (),
        top=parameters.top or top or DEFAULT_TOP,
        softmax=softmax if parameters.softmax is None else parameters.softmax,
    )


def _input(info: ServedModelInfo) -> TensorSpec:
    if [spec.dtype for spec in info.inputs] != ["float32"]:
        raise ConfigError(
            f"{info.name} takes {_specs(info.inputs)}; the classify task feeds one float32 tensor"
        )
    return info.inputs[0]


def _output(info: ServedModelInfo, name: str) -> TensorSpec:
    name = name or info.outputs[0].name
    output = next((spec for spec in info.outputs if spec.name == name), None)
    if output is None:
        raise ConfigError(
            f"{info.name}: parameters.output is {name!r}, the model returns {_specs(info.outputs)}"
        )
    if len(output.shape) < 2 or not set(output.shape[2:]) <= {1, -1}:
        raise ConfigError(
            f"{info.name} returns {_specs([output])}; the classify task expects a score for each "
            "class: (pictures, classes)"
        )
    return output


def _specs(specs: Sequence[TensorSpec]) -> str:
    return ", ".join(f"{spec.name} {spec.dtype}{spec.shape}" for spec in specs)


def _read_file(
    info: ServedModelInfo, parameters: Parameters
) -> tuple[Operations, Sequence[str] | None, int]:
    """Return the operations, the labels and the `topk` of inference.yml.

    `parameters` replace values of the operations. The labels are None if the file has none. Raises
    ConfigError if the file is wrong or is not that of a classifier, or if a parameter cannot be
    applied to it.
    """
    # Imported here: a server without such a model saves the memory.
    from paddlepool.tasks.transforms.config import TopK, inference_config

    config = inference_config(info)
    assert config is not None  # noqa: S101  the caller has seen the file
    topk = config.postprocess
    if not isinstance(topk, TopK):
        raise ConfigError(
            f"{info.name}: the classify task needs Topk as PostProcess in {INFERENCE_FILE}"
        )
    names = {step.name for step in config.operations}
    changed = parameters.model_dump(exclude_none=True)
    if parameters.drawing:
        raise ConfigError(f"{info.name}: parameters.drawing does not go with {INFERENCE_FILE}")
    changes: dict[str, dict[str, Any]] = {}
    for key in ("mean", "std", "scale"):
        if key in changed:
            changes.setdefault("NormalizeImage", {})[key] = changed[key]
    for key in ("resize_short", "interpolation"):
        if key in changed:
            changes.setdefault("ResizeImage", {})[key] = changed[key]
    if parameters.size is not None:
        place = "CropImage" if "CropImage" in names else "ResizeImage"
        changes.setdefault(place, {})["size"] = _height_width(parameters.size)[::-1]
    if parameters.channels is not None:
        key = "format" if "ReadImage" in names else "img_mode"
        changes["ReadImage" if key == "format" else "DecodeImage"] = {key: parameters.channels}
    for name, values in changes.items():
        config = config.overridden(name, **values)
    return config.as_meta(), topk.label_list, topk.topk


def _operations(info: ServedModelInfo, parameters: Parameters, tensor: TensorSpec) -> Operations:
    """Return the operations of a model without inference.yml, as the parameters describe them.

    `tensor` is the model's input. Raises ConfigError if parameters conflict, if there is a wrong
    number of means or deviations, or if neither `size` nor `tensor` has the picture's size.
    """
    grey = parameters.drawing or parameters.channels == "GREY"
    if parameters.drawing and parameters.channels not in (None, "GREY"):
        raise ConfigError(f'{info.name}: parameters.drawing needs channels = "GREY"')
    if parameters.size is not None:
        height, width = _height_width(parameters.size)
    else:
        height, width = _own_size(info, tensor, 1 if grey else 3)
    short = parameters.resize_short
    operations: Operations = []
    if parameters.drawing:
        if short is not None or parameters.interpolation is not None:
            raise ConfigError(
                f"{info.name}: parameters.drawing does not go with resize_short and interpolation"
            )
        operations.append(["Drawing", {"height": height, "width": width}])
    else:
        if short is not None and short < max(height, width):
            raise ConfigError(
                f"{info.name}: parameters.resize_short is {short}, the model reads "
                f"{height} x {width} pixels"
            )
        resize = {
            "resize_short": short,
            "size": None if short else (width, height),
            "backend": "pil",  # smooths what it shrinks, as the training of most models did
            "interpolation": parameters.interpolation or "BILINEAR",
        }
        operations.append(["ResizeImage", resize])
        if short is not None:
            operations.append(["CropImage", {"size": (width, height)}])
        if grey:
            operations.append(["Grey", {}])
        elif parameters.channels == "BGR":
            operations.append(["DecodeImage", {"img_mode": "BGR"}])
    defaults: Mapping[str, Any] = {"mean": 0.0, "std": 1.0} if grey else IMAGENET
    values = {
        key: _for_channels(info, key, given if given is not None else defaults[key], grey)
        for key, given in (("mean", parameters.mean), ("std", parameters.std))
    }
    scale = 1 / 255 if parameters.scale is None else parameters.scale
    operations += [["NormalizeImage", {**values, "scale": scale}], ["ToCHWImage", {}]]
    return operations


def _height_width(size: int | tuple[int, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size


def _own_size(info: ServedModelInfo, tensor: TensorSpec, channels: int) -> tuple[int, int]:
    """Return the height and width of a picture from the shape of the model's input, `tensor`.

    Raises ConfigError if they are free in the shape, or if it does not have four axes.
    """
    shape = tensor.shape[1:]
    if len(shape) == 3:
        sides = shape[1:] if shape[0] in (channels, -1) else shape[:2]
        if -1 not in sides:
            return sides[0], sides[1]
    raise ConfigError(
        f"{info.name} takes {_specs([tensor])}, which does not say the size of a picture: set "
        "parameters.size"
    )


def _for_channels(info: ServedModelInfo, key: str, value: Any, grey: bool) -> tuple[float, ...]:
    """Return the `value` of the parameter `key` as a tuple with a number for each channel.

    A single number applies to every channel. Raises ConfigError for a list of another length.
    """
    channels = 1 if grey else 3
    numbers = (value,) * channels if isinstance(value, int | float) else tuple(value)
    if len(numbers) != channels:
        raise ConfigError(
            f"{info.name}: parameters.{key} has {len(numbers)} numbers for {channels} channels"
        )
    return numbers


def _labels_of(info: ServedModelInfo, name: str) -> Sequence[str]:
    """Read labels, one on each line, from the file `name`.

    The file is in the version's directory or, if there is none, beside config.toml. Raises
    ConfigError if `name` is no plain file name, or if the file is missing, larger than
    MOST_LABELS_BYTES or not UTF-8.
    """
    if not re.fullmatch(r"[\w-][\w.-]*", name, re.ASCII):
        raise ConfigError(f"{info.name}: parameters.labels is not the name of a file: {name!r}")
    for directory in (info.directory, info.directory.parent):
        if (path := directory / name).is_file():
            break
    else:
        raise ConfigError(
            f"{info.name}: parameters.labels: there is no file {name} beside config.toml or in "
            "the version's directory"
        )
    if (size := path.stat().st_size) > MOST_LABELS_BYTES:
        raise ConfigError(f"{name} has {size} bytes, the limit is {MOST_LABELS_BYTES}")
    try:
        return [line.strip() for line in path.read_text("utf-8-sig").rstrip().split("\n")]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{info.name}: {name} cannot be read as UTF-8 text") from error


def _fitted(
    info: ServedModelInfo, tensor: TensorSpec, operations: Operations
) -> tuple[Operations, tuple[int, ...] | None]:
    """Return the operations that fit the model's input, and the shape of the input for one picture.

    If the model takes the channels as the last axis, the operations lack the one that moves them.
    The shape is None if it depends on the picture. A picture of a fixed size can also become one
    row of numbers or, if it is grey, lack the axis of channels; the shape then has fewer axes.
    Raises ConfigError if the model accepts none of these inputs.
    """
    channels = 1 if any(name in ("Grey", "Drawing") for name, _ in operations) else 3
    height, width = _made_size(operations)
    first, last = (1, channels, height, width), (1, height, width, channels)
    shapes: dict[tuple[int, ...], Operations]
    shapes = {first: operations, last: operations[:-1]}
    if height > 0:
        shapes[1, channels * height * width] = operations
        if channels == 1:
            shapes[1, height, width] = operations
    for shape, steps in shapes.items():
        if tensor.admits_shape(shape):
            return steps, shape if height > 0 else None
    raise ConfigError(
        f"{info.name} takes {_specs([tensor])}; a picture becomes "
        f"{channels} x {_free(height)} x {_free(width)} (channels, height, width)"
    )


def _free(side: int) -> str:
    return "any" if side < 0 else str(side)


def _made_size(operations: Operations) -> tuple[int, int]:
    """Return the height and width that the operations produce; -1 for both if they are not fixed.

    They are fixed by a Drawing, by a CropImage, or by a ResizeImage without `resize_short`.
    """
    height, width = -1, -1
    for name, values in operations:
        if name == "Drawing":
            height, width = values["height"], values["width"]
        elif name == "CropImage" or (name == "ResizeImage" and not values["resize_short"]):
            width, height = values["size"]
    return height, width
