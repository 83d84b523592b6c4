"""Requests to one classifier, over a codec process that is a function of this process."""

import time
from typing import Any

import numpy as np
import pytest

from paddlepool.contracts.errors import FileMissing, InvalidParameter, WorkerCrashed
from paddlepool.contracts.ports import ServedModelInfo
from paddlepool.contracts.tensors import Tensors
from paddlepool.tasks.classify.pipeline import (
    ClassifyPipeline,
    ClassifyRequest,
    ClassifyResult,
    label_agreement,
    probabilities,
    tensors,
)
from paddlepool.tasks.transforms.labels import Label
from tests.service.api.fakes import make_settings
from tests.tasks.classify.models import FunctionCodecs, OutputContext, model

PICTURE = np.full((30, 40, 3), 255, np.uint8)


async def classified(
    info: ServedModelInfo, scores: Any, top: int | None = None, arrays: Tensors | None = None
) -> ClassifyResult:
    pipeline = ClassifyPipeline(info, codecs=FunctionCodecs(PICTURE, arrays).codecs)
    context = OutputContext(
        deadline=time.monotonic() + 9, outputs={"y": np.array(scores, np.float32)}
    )
    result = await pipeline.run(ClassifyRequest(b"a picture", top), context)
    assert [job["x"].shape for job in context.jobs] == [(1, 3, 8, 8)]
    assert context.stages.keys() == {"postprocess"}
    return result


async def test_labels_come_best_first() -> None:
    info = model(3, 8, 8, labels=["a", "b", "c"], top=2)
    result = await classified(info, [[0.25, 0.5, 0.25]])
    assert (result.width, result.height) == (40, 30)
    assert [label.label for label in result.labels] == ["b", "c"]
    assert result.labels[0] == Label(1, "b", 0.5)
    assert len((await classified(info, [[0.25, 0.5, 0.25]], top=3)).labels) == 3


async def test_a_class_without_a_label_is_its_number() -> None:
    result = await classified(model(3, 8, 8, classes=(3, 1, 1)), [[[[1.0]], [[2.0]], [[3.0]]]])
    assert [label.label for label in result.labels] == ["2", "1", "0"]
    assert sum(label.score for label in result.labels) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("values", "softmax", "applied"),
    [
        ([0.2, 0.8], None, False),
        ([0.2, 0.795], None, False),  # rounded by a lower precision
        ([0.2, 0.2], None, True),
        ([-0.5, 1.5], None, True),
        ([3.0, 9.0], None, True),
        ([3.0, 9.0], False, False),
        ([0.2, 0.8], True, True),
    ],
)
def test_outputs_become_probabilities(
    values: list[float], softmax: bool | None, applied: bool
) -> None:
    given = np.array(values, np.float32)
    powers = np.exp(np.array(values) - max(values))
    expected = powers / powers.sum() if applied else given
    assert probabilities(given, softmax) == pytest.approx(expected, abs=1e-6)


def test_large_logits_do_not_overflow() -> None:
    assert probabilities(np.array([1e4, 0.0], np.float32), None).tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    "arrays",
    [
        {"size": np.array([1, 2, 3], np.int32)},
        {"size": np.array([1.0, 2.0])},
        {"more": np.zeros(1)},
    ],
)
async def test_another_reply_of_a_codec_process_is_refused(arrays: Tensors) -> None:
    with pytest.raises(WorkerCrashed):
        await classified(model(3, 8, 8), [[0.0, 0.0, 0.0]], arrays=arrays)


async def test_a_reply_of_a_codec_process_without_size_is_refused() -> None:
    class WithoutSize(FunctionCodecs):
        async def read_picture(self, *_: Any) -> Tensors:
            return {"input": np.zeros((1, 3, 8, 8), np.float32)}

    pipeline = ClassifyPipeline(model(3, 8, 8), codecs=WithoutSize(PICTURE).codecs)
    context = OutputContext(deadline=time.monotonic() + 9, outputs={})
    with pytest.raises(WorkerCrashed):
        await pipeline.run(ClassifyRequest(b"a picture"), context)


def test_agreement_is_the_share_of_equal_labels() -> None:
    agreement = label_agreement(model(3, 8, 8))
    one = {"y": np.array([[0, 1, 2], [5, 1, 2]])}
    assert agreement(one, one) == 1.0
    assert agreement(one, {"y": np.array([[0, 1, 2], [0, 1, 2]])}) == 0.5


def test_the_task_under_v2() -> None:
    task = tensors(make_settings(classify_max_bytes=77))
    assert task.max_bytes == 77
    image = np.array([b"picture"], object)
    assert task.read({"image": image}, {"top": 2}) == ClassifyRequest(b"picture", 2)
    with pytest.raises(InvalidParameter, match="from 1 to 1000, received 0"):
        task.read({"image": image}, {"top": 0})
    with pytest.raises(FileMissing):
        task.read({"image": np.array([b""], object)}, {})
    outputs = task.write(ClassifyResult([Label(4, "四", 0.75), Label(9, "9", 0.25)], 7, 5))
    assert outputs["labels"].tolist() == ["四".encode(), b"9"]
    assert (outputs["class_ids"].tolist(), outputs["scores"].tolist()) == ([4, 9], [0.75, 0.25])
    assert outputs["size"].tolist() == [7, 5]
    assert {spec.name: spec.dtype for spec in task.outputs} == {
        name: array.dtype.name for name, array in outputs.items()
    }
