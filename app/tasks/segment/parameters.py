"""The `[parameters]` of a matting model, and how well two masks agree; needs no picture library."""

from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from app.contracts.errors import ConfigError
from app.contracts.ports import Agreement, ServedModelInfo
from app.contracts.tensors import Tensors, TensorSpec
from app.models.repository.config import parse_parameters
from app.tasks.segment.masks import normalise

Positive = Annotated[float, Field(gt=0)]
FOREGROUND = 0.5


class Parameters(BaseModel):
    """How a picture becomes the network's input: side in pixels, then mean and std per channel.

    `output` names the output that is the mask; the default is the first output. The other defaults
    are U2-Net's
    (https://github.com/xuebinqin/U-2-Net/blob/master/data_loader.py).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    size: int = Field(default=320, ge=16, le=4096)
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[Positive, Positive, Positive] = (0.229, 0.224, 0.225)
    output: str | None = None


def read_parameters(info: ServedModelInfo) -> Parameters:
    """Read the parameters. Raises ConfigError if they are wrong or do not fit the tensors."""
    parameters = parse_parameters(info, Parameters)
    wanted = (3, parameters.size, parameters.size)
    if (
        len(info.inputs) != 1
        or info.inputs[0].dtype != "float32"
        or len(info.inputs[0].shape) != 4
        or any(
            has not in (-1, want)
            for has, want in zip(info.inputs[0].shape[1:], wanted, strict=True)
        )
    ):
        raise ConfigError(
            f"{info.name} takes {', '.join(f'{s.name} {s.dtype}{s.shape}' for s in info.inputs)}; "
            f"the segment task feeds one float32 tensor (pictures, 3, {wanted[1]}, {wanted[2]})"
        )
    mask = mask_output(info, parameters)
    if len(mask.shape) != 4 or mask.shape[1] not in (-1, 1):
        raise ConfigError(
            f"{info.name} returns {mask.name} {mask.dtype}{mask.shape} as its mask; the segment "
            "task expects (pictures, 1, height, width)"
        )
    return parameters


def mask_output(info: ServedModelInfo, parameters: Parameters) -> TensorSpec:
    """The output that is the mask. Raises ConfigError if no output has the configured name."""
    names = [spec.name for spec in info.outputs]
    if parameters.output is None:
        return info.outputs[0]
    if parameters.output not in names:
        raise ConfigError(
            f"{info.name}: parameters.output is {parameters.output!r}, the model returns "
            f"{', '.join(names)}"
        )
    return info.outputs[names.index(parameters.output)]


def mask_agreement(info: ServedModelInfo) -> Agreement:
    """The intersection over union of two outputs' masks; 1 also if both masks are empty."""
    output = mask_output(info, read_parameters(info)).name

    def agreement(found: Tensors, expected: Tensors) -> float:
        ours, theirs = (
            normalise(np.asarray(each[output], np.float32)) >= FOREGROUND
            for each in (found, expected)
        )
        union = int((ours | theirs).sum())
        return float((ours & theirs).sum() / union) if union else 1.0

    return agreement
