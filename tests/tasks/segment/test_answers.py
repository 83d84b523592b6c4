"""Checks of what a codec process answers to the stages of `/segment`."""

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from app.contracts.errors import WorkerCrashed
from app.contracts.tensors import Array, Tensors
from app.tasks.codecs.picture import PictureStore
from app.tasks.codecs.pool import CodecPool, Codecs
from app.tasks.segment import stages
from app.tasks.segment.pipeline import (
    CHECKS,
    STAGES,
    SegmentPipeline,
    check_background,
    check_opened,
    check_rendered,
)
from tests.engine.driving import Loop
from tests.engine.fakes import wait_until
from tests.tasks.segment.serving import INFO


def lie(meta: Mapping[str, Any], _arrays: Tensors, _descriptors: object) -> stages.Result:
    return meta["answer"], {}


@pytest.mark.slow
def test_an_answer_that_is_refused_costs_the_process(loop: Loop) -> None:
    """Each stage has its check."""
    reasons: list[str] = []
    pool = loop(CodecPool, count=1, wall_seconds=60.0, on_restart=reasons.append)
    pool.start()
    try:
        SegmentPipeline(INFO, codecs=Codecs(pool=pool, pictures=PictureStore(budget=1 << 30)))
        expected: list[str] = []
        for stage in CHECKS:
            pool.expect(f"{__name__}:lie", pool.it._checks[f"{STAGES}:{stage}"])
            call = pool.submit(f"{__name__}:lie", {"answer": {}}, deadline=time.monotonic() + 60)
            with pytest.raises(WorkerCrashed):
                call.result(timeout=60)
            expected.append("corrupt")
            wait_until(lambda: reasons == expected)
    finally:
        pool.close()


@pytest.mark.parametrize("pixels", [-5, 0, 101])
def test_a_background_has_pixels_within_the_limit(pixels: int) -> None:
    good = {"shape": [5, 6, 3], "pixels": 30, "seconds": 0.1}
    check_background(ASKED, good, {})
    with pytest.raises(ValueError, match="pixels"):
        check_background(ASKED, good | {"pixels": pixels}, {})


ASKED = {"limits": {"pixels": 100}, "network": {"size": 4}, "labels": True}
OPENED_META = {"shape": [5, 6, 3], "pixels": 30, "seconds": {"decode": 0.1, "preprocess": 0.1}}
INPUT = np.zeros((1, 3, 4, 4), np.float32)
RENDERED_META = {
    "width": 6,
    "height": 5,
    "box": [0, 0, 6, 5],
    "confidence": 0.5,
    "seconds": {"postprocess": 0.1, "encode": 0.1},
}
FILE, LABELS = np.zeros(9, np.uint8), np.zeros(30, np.uint8)


@pytest.mark.parametrize(
    ("meta", "arrays"),
    [
        ({"pixels": 101}, {}),
        ({"shape": "abc"}, {}),
        ({"shape": [5.5, 6, 3]}, {}),
        ({"seconds": {"decode": 0.1, "a header": 0.1}}, {}),
        ({"seconds": {"decode": 1e999, "preprocess": 0.1}}, {}),
        ({"more": 1}, {}),
        ({}, {"input": INPUT.astype(np.float64)}),
        ({}, {"input": INPUT.repeat(7, axis=0)}),
        ({}, {"more": INPUT}),
    ],
    ids=str,
)
def test_an_opened_picture_has_its_names_types_and_sizes(
    meta: dict[str, object], arrays: dict[str, Array]
) -> None:
    check_opened(ASKED, OPENED_META, {"input": INPUT})
    with pytest.raises(ValueError, match=r"\w"):
        check_opened(ASKED, OPENED_META | meta, {"input": INPUT} | arrays)


@pytest.mark.parametrize(
    ("meta", "arrays"),
    [
        ({"width": True}, {}),
        ({"width": 10**6}, {}),
        ({"box": ["x"] * 4}, {}),
        ({"box": [0]}, {}),
        ({"confidence": "x"}, {}),
        ({"seconds": {"zzlabel": 1.0, "encode": 1.0}}, {}),
        ({}, {"image": FILE[:0]}),
        ({}, {"image": FILE.astype(np.float32)}),
        ({}, {"image": np.zeros(1 << 20, np.uint8)}),
        ({}, {"labels": LABELS[:-1]}),
    ],
    ids=str,
)
def test_a_result_has_its_names_types_and_sizes(
    meta: dict[str, object], arrays: dict[str, Array]
) -> None:
    good = {"image": FILE, "labels": LABELS}
    check_rendered(ASKED, RENDERED_META, good)
    with pytest.raises(ValueError, match=r"\w"):
        check_rendered(ASKED, RENDERED_META | meta, good | arrays)
