"""Semantic segmentation models: which labels are foreground, and how well two label maps agree.

A version with an `inference.yml` is such a model; one without is a matting model. This module loads
no picture library.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from paddlepool.contracts.errors import ConfigError
from paddlepool.contracts.ports import Agreement, ServedModelInfo
from paddlepool.contracts.tensors import Tensors
from paddlepool.models.repository.config import parse_parameters
from paddlepool.tasks.transforms.config import FILE, LabelMap, inference_config
from paddlepool.tasks.transforms.labels import pixel_labels

MOST_LABELS = 256
"""A label is a grey value of 8 bits."""
ClassId = Annotated[int, Field(strict=True, ge=0, lt=MOST_LABELS)]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Class = ClassId | Name


class SemanticParameters(BaseModel):
    """What counts as foreground. Every key may be left out.

    `labels` has the names of the classes, or is the name of a file of the version with one name on
    each line. `foreground` lists the classes that count, by number or name; without it, every class
    except `background` counts. `output` names the output with the labels; the default is the first.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    background: Class = 0
    foreground: tuple[Class, ...] | None = Field(default=None, min_length=1)
    labels: tuple[Name, ...] | Name | None = Field(default=None, max_length=MOST_LABELS)
    output: str = Field(default="", min_length=1)


@dataclass(frozen=True, slots=True)
class Semantic:
    """How a semantic segmentation model is used.

    `operations` are the argument of `transforms.stages.prepare`, `classes` and `invert` those of
    `masks.foreground_of`. `output` is the name of the output with the labels.
    """

    operations: list[list[Any]]
    output: str
    classes: list[int]
    invert: bool


def read_semantic(info: ServedModelInfo) -> Semantic | None:
    """Read a semantic segmentation model; None if the version has no `inference.yml`.

    Raises ConfigError if the file, the parameters or the tensors do not fit the task.
    """
    config = inference_config(info)
    if config is None:
        return None
    if not isinstance(config.postprocess, LabelMap):
        raise ConfigError(
            f"{info.name}: the segment task needs a model with a label for each pixel; {FILE} has "
            f"{type(config.postprocess).__name__} after the model"
        )
    parameters = parse_parameters(info, SemanticParameters)
    if not any(
        len(info.inputs) == 1
        and spec.dtype == "float32"
        and len(spec.shape) == 4
        and spec.shape[1] in (-1, 3)
        for spec in info.inputs
    ):
        raise ConfigError(
            f"{info.name} takes {', '.join(f'{s.name} {s.dtype}{s.shape}' for s in info.inputs)}; "
            "the segment task feeds one float32 tensor (pictures, 3, height, width)"
        )
    name = parameters.output or info.outputs[0].name
    output = next((spec for spec in info.outputs if spec.name == name), None)
    if output is None:
        raise ConfigError(
            f"{info.name}: parameters.output is {name!r}, the model returns "
            f"{', '.join(spec.name for spec in info.outputs)}"
        )
    if len(output.shape) not in (3, 4):
        raise ConfigError(
            f"{info.name} returns {name} {output.dtype}{output.shape}; the segment task expects "
            "labels (pictures, height, width) or scores (pictures, classes, height, width)"
        )
    names = _names(info, parameters.labels)
    counted = parameters.foreground
    classes = [_number(info, item, names) for item in counted or (parameters.background,)]
    return Semantic(config.as_meta(), name, classes, invert=counted is None)


def _names(info: ServedModelInfo, labels: Sequence[str] | str | None) -> list[str]:
    if not isinstance(labels, str):
        return list(labels or ())
    if PurePath(labels).name != labels:
        raise ConfigError(f"{info.name}: parameters.labels is not the name of a file")
    try:
        lines = (info.directory / labels).read_text("utf-8").splitlines()
    except (OSError, ValueError):
        raise ConfigError(
            f"{info.name}: parameters.labels: the version has no readable text file {labels!r}"
        ) from None
    return [line.strip() for line in lines]


def _number(info: ServedModelInfo, item: int | str, names: Sequence[str]) -> int:
    if isinstance(item, int):
        return item
    if item not in names:
        raise ConfigError(f"{info.name}: parameters.labels has no class {item!r}")
    return names.index(item)


def label_agreement(semantic: Semantic) -> Agreement:
    """Return a function that compares two outputs by the share of pixels with equal labels."""

    def agreement(outputs: Tensors, expected: Tensors) -> float:
        labels, reference = (
            np.stack([pixel_labels(picture) for picture in tensors[semantic.output]])
            for tensors in (outputs, expected)
        )
        return float((labels == reference).mean())

    return agreement
