"""Checks of what a codec process answers to the stages of `/segment`."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from paddlepool.contracts.errors import WorkerCrashed
from paddlepool.contracts.tensors import Array, Tensors
from paddlepool.engine.process.replies import Check
from paddlepool.tasks.codecs.picture import PictureStore
from paddlepool.tasks.codecs.pool import CodecPool, Codecs
from paddlepool.tasks.segment import stages
from paddlepool.tasks.segment.pipeline import (
    CHECKS,
    STAGES,
    SegmentPipeline,
    check_background,
    check_opened,
    check_rendered,
)
from tests.engine.fakes import eventually, soon
from tests.tasks.segment.serving import INFO


def lie(meta: Mapping[str, Any], _arrays: Tensors, _descriptors: object) -> stages.Result:
    return meta["answer"], {}


@pytest.mark.slow
async def test_an_answer_that_is_refused_costs_the_process() -> None:
    """Each stage has its check."""
    reasons: list[str] = []
    pool = CodecPool(count=1, wall_seconds=60.0, on_restart=reasons.append)
    pool.start()
    try:
        SegmentPipeline(INFO, codecs=Codecs(pool=pool, pictures=PictureStore(budget=1 << 30)))
        expected: list[str] = []
        for stage in CHECKS:
            pool.checks[f"{__name__}:lie"] = pool.checks[f"{STAGES}:{stage}"]
            with pytest.raises(WorkerCrashed):
                await pool.submit(f"{__name__}:lie", {"answer": {}}, deadline=soon())
            expected.append("corrupt")
            await eventually(lambda: reasons == expected)
    finally:
        await pool.close()


ASKED = {"limits": {"pixels": 100}, "network": {"size": 4}, "labels": True}
INPUT = np.zeros((1, 3, 4, 4), np.float32)
FILE, LABELS = np.zeros(9, np.uint8), np.zeros(30, np.uint8)
OPENED = {"shape": [5, 6, 3], "pixels": 30, "seconds": {"decode": 0.1, "preprocess": 0.1}}
RENDERED: dict[str, Any] = {
    "width": 6,
    "height": 5,
    "box": {"top": 0, "left": 0, "height": 5, "width": 6},
    "confidence": 0.5,
    "seconds": {"postprocess": 0.1, "encode": 0.1},
}
GOOD: dict[Check, tuple[dict[str, object], dict[str, Array]]] = {
    check_opened: (OPENED, {"input": INPUT}),
    check_background: (OPENED | {"seconds": {"decode": 0.1}}, {}),
    check_rendered: (RENDERED, {"image": FILE, "labels": LABELS}),
}


@pytest.mark.parametrize(
    ("check", "meta", "arrays"),
    [
        (check_opened, {"pixels": 101}, {}),
        (check_opened, {"shape": "abc"}, {}),
        (check_opened, {"shape": [5.5, 6, 3]}, {}),
        (check_opened, {"seconds": {"decode": 0.1, "a header": 0.1}}, {}),
        (check_opened, {"seconds": {"decode": 1e999, "preprocess": 0.1}}, {}),
        (check_opened, {"more": 1}, {}),
        (check_opened, {}, {"input": INPUT.astype(np.float64)}),
        (check_opened, {}, {"input": INPUT.repeat(7, axis=0)}),
        (check_opened, {}, {"more": INPUT}),
        (check_background, {"pixels": -5}, {}),
        (check_background, {"pixels": 0}, {}),
        (check_background, {"pixels": 101}, {}),
        (check_rendered, {"width": True}, {}),
        (check_rendered, {"width": 10**6}, {}),
        (check_rendered, {"box": dict.fromkeys(RENDERED["box"], "x")}, {}),
        (check_rendered, {"box": {"top": 0}}, {}),
        (check_rendered, {"confidence": "x"}, {}),
        (check_rendered, {"seconds": {"zzlabel": 1.0, "encode": 1.0}}, {}),
        (check_rendered, {}, {"image": FILE[:0]}),
        (check_rendered, {}, {"image": FILE.astype(np.float32)}),
        (check_rendered, {}, {"image": np.zeros(1 << 20, np.uint8)}),
        (check_rendered, {}, {"labels": LABELS[:-1]}),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_an_answer_has_its_names_types_and_sizes(
    check: Check, meta: dict[str, object], arrays: dict[str, Array]
) -> None:
    good_meta, good_arrays = GOOD[check]
    check(ASKED, good_meta, good_arrays)
    with pytest.raises(ValueError, match=r"\w"):
        check(ASKED, good_meta | meta, good_arrays | arrays)
