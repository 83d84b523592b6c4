"""Pipeline of one classifier: make its input from a picture, run the model, name the best classes.

The first step runs in a codec process. This module loads no picture library.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from paddlepool.contracts.errors import FileMissing, ModelOutputInvalid, WorkerCrashed
from paddlepool.contracts.ports import Agreement, RequestContext, ServedModelInfo, Slices
from paddlepool.contracts.tensors import STRINGS, TaskTensors, Tensors, TensorSpec, strings_of
from paddlepool.settings.server import MIB, Bytes, Settings
from paddlepool.tasks.classify.model import Top, read_classifier
from paddlepool.tasks.codecs.pool import Codecs
from paddlepool.tasks.options import Options
from paddlepool.tasks.transforms.labels import Label, top_labels

NETWORK_INPUT = "paddlepool.tasks.classify.stages:network_input"
SUM_TOLERANCE = 0.01
"""Numbers from 0 to 1 count as probabilities if their sum differs from 1 by less than this. int8
programs and bfloat16 change a sum by a few thousandths."""


class ClassifySettings(BaseModel):
    """Settings of the task; each variable is PADDLEPOOL_ and the field's name in capitals."""

    classify_max_bytes: Bytes = Field(
        30 * MIB, description="Maximum request body of /classify, in bytes."
    )


class ClassifyOptions(Options):
    """The options of `/classify`. Each is a parameter of the query, the form or the JSON."""

    top: Top | None = Field(
        None,
        description="At most this many labels, best first. Left out: the model's own number, else "
        "5.",
    )


class ClassifyRequest(NamedTuple):
    """The bytes of a picture file, and how many labels to return; None means Classifier.top."""

    body: bytes
    top: int | None = None


class ClassifyResult(NamedTuple):
    """The best labels, best first, and the size of the upright picture in pixels."""

    labels: list[Label]
    width: int
    height: int


def probabilities(values: NDArray[Any], softmax: bool | None) -> NDArray[Any]:
    """Return the score of each class from `values` (classes), the model's output for one picture.

    A softmax is applied if `softmax` is true. If it is None, one is applied unless the values look
    like probabilities: they are from 0 to 1, and their sum is near 1 (SUM_TOLERANCE).
    """
    if softmax is None:
        is_share = values.min() >= 0 and values.max() <= 1
        softmax = not (is_share and abs(float(values.sum()) - 1) < SUM_TOLERANCE)
    if not softmax:
        return values
    powers: NDArray[Any] = np.exp(values.astype(np.float64) - values.max())
    powers /= powers.sum()
    return powers


def label_agreement(info: ServedModelInfo) -> Agreement:
    """Return a function that compares two outputs by the share of pictures with equal best classes.

    Raises ConfigError as read_classifier() does.
    """
    output = read_classifier(info).output

    def agreement(outputs: Tensors, expected: Tensors) -> float:
        best, reference = (
            tensors[output].reshape(len(tensors[output]), -1).argmax(axis=1)
            for tensors in (outputs, expected)
        )
        return float(np.mean(best == reference))

    return agreement


def label_slices(info: ServedModelInfo) -> Slices:
    """Return a function that returns the best label of each picture in a model's outputs.

    Raises ConfigError as read_classifier() does.
    """
    classifier = read_classifier(info)

    def slices(outputs: Tensors) -> list[str]:
        scores = outputs[classifier.output]
        best = scores.reshape(len(scores), -1).argmax(axis=1).tolist()
        return [_label_of(number, classifier.labels) for number in best]

    return slices


def _label_of(class_id: int, labels: Sequence[str]) -> str:
    """Return the label of a class; its number if it has no label."""
    return labels[class_id] if class_id < len(labels) else str(class_id)


class ClassifyPipeline:
    """Implements the Pipeline port; a payload is a ClassifyRequest, a value a ClassifyResult."""

    def __init__(self, info: ServedModelInfo, *, codecs: Codecs) -> None:
        """Read what the model needs. Raises ConfigError as read_classifier() does."""
        self._classifier = read_classifier(info)
        self._values = {
            "operations": self._classifier.operations,
            "shape": self._classifier.shape,
        }
        self._codecs = codecs

    async def run(self, payload: ClassifyRequest, context: RequestContext) -> ClassifyResult:
        """Decode the picture, run the network and name the best classes.

        Raises the errors of Codecs.read_picture() and RequestContext.infer(), and
        ModelOutputInvalid if the model returns no scores.
        """
        classifier = self._classifier
        arrays = await self._codecs.read_picture(payload.body, NETWORK_INPUT, self._values, context)
        height, width = _size(arrays)
        [outputs] = await context.infer([{classifier.input: arrays["input"]}])
        with context.stage("postprocess"):
            values = outputs[classifier.output].reshape(-1)
            if not values.size:
                raise ModelOutputInvalid("the model returned no scores")
            scores = probabilities(values, classifier.softmax)
            [best] = top_labels(scores[np.newaxis], topk=payload.top or classifier.top)
            labels = [
                label._replace(label=_label_of(label.class_id, classifier.labels)) for label in best
            ]
        return ClassifyResult(labels, width, height)

    def close(self) -> None:
        """Do nothing: the codecs are shared and belong to `paddlepool.main`."""


def _size(arrays: Tensors) -> list[int]:
    """Return the picture's height and width from the arrays of network_input().

    Raises WorkerCrashed if a codec process sent other arrays.
    """
    if (
        arrays.keys() != {"input", "size"}
        or (size := arrays["size"]).shape != (2,)
        or size.dtype != np.int32
    ):
        raise WorkerCrashed("a codec process returned other arrays than it was asked for")
    sides: list[int] = size.tolist()
    return sides


def max_bytes(settings: Settings) -> int:
    return settings.of(ClassifySettings).classify_max_bytes


def tensors(settings: Settings) -> TaskTensors:
    return TaskTensors(
        inputs=(TensorSpec("image", STRINGS, (1,)),),
        outputs=(
            TensorSpec("labels", STRINGS, (-1,)),
            TensorSpec("class_ids", "int32", (-1,)),
            TensorSpec("scores", "float32", (-1,)),
            TensorSpec("size", "int32", (2,)),
        ),
        parameters=tuple(ClassifyOptions.model_fields),
        read=_read,
        write=_write,
        max_bytes=max_bytes(settings),
    )


def _read(inputs: Tensors, parameters: Mapping[str, Any]) -> ClassifyRequest:
    picture: bytes = inputs["image"].item(0)
    if not picture:
        raise FileMissing("image: the picture has 0 bytes", received=0)
    return ClassifyRequest(picture, ClassifyOptions(**parameters).top)


def _write(result: ClassifyResult) -> Tensors:
    labels = result.labels
    return {
        "labels": strings_of([label.label.encode() for label in labels], (len(labels),)),
        "class_ids": np.array([label.class_id for label in labels], np.int32),
        "scores": np.array([label.score for label in labels], np.float32),
        "size": np.array([result.width, result.height], np.int32),
    }
