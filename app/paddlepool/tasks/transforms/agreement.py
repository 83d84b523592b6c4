"""How closely two outputs of a part agree: a model with an `inference.yml` and no task of its own.

No picture library is loaded here: the API process uses it too.
"""

import numpy as np

from paddlepool.contracts.errors import ConfigError
from paddlepool.contracts.ports import Agreement, ServedModelInfo
from paddlepool.contracts.tensors import Tensors
from paddlepool.tasks.transforms.config import (
    BoxesFromMap,
    InferenceConfig,
    TextFromClasses,
    inference_config,
)
from paddlepool.tasks.transforms.labels import BLANK

NAMES = {BoxesFromMap: "text area IoU", TextFromClasses: "equal characters"}
"""What is measured, by the operation after the model."""


def part_config(info: ServedModelInfo) -> InferenceConfig | None:
    """Return what a text detector's or recogniser's file says; None for any other model.

    A file that cannot be used does not matter: the model is served as tensors.
    """
    try:
        config = inference_config(info)
    except ConfigError:
        return None
    alone = len(info.inputs) == len(info.outputs) == 1
    return config if config and alone and type(config.postprocess) in NAMES else None


def part_agreement(info: ServedModelInfo) -> Agreement | None:
    """Return the measure for a detector's maps or a recogniser's classes; None for other models."""
    config = part_config(info)
    if config is None:
        return None
    [output] = info.outputs
    after = config.postprocess

    def maps(outputs: Tensors, expected: Tensors) -> float:
        """Return the IoU of the areas above the threshold, 1 if both are empty."""
        assert isinstance(after, BoxesFromMap)  # noqa: S101  chosen below
        area, reference = (
            np.asarray(tensors[output.name], np.float32) > after.thresh
            for tensors in (outputs, expected)
        )
        union = int((area | reference).sum())
        return float((area & reference).sum() / union) if union else 1.0

    def characters(outputs: Tensors, expected: Tensors) -> float:
        """Return the share of columns with equal classes, of those where either has a character."""
        classes, reference = (tensors[output.name].argmax(-1) for tensors in (outputs, expected))
        read = (classes != BLANK) | (reference != BLANK)
        return float(np.mean(classes[read] == reference[read])) if read.any() else 1.0

    return maps if isinstance(after, BoxesFromMap) else characters
