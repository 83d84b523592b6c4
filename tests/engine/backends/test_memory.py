"""Thousands of shapes: what engines keep for each one must not add up."""

from itertools import product
from typing import Any

import numpy as np
import pytest

from paddlepool.models.repository.layout import ModelFiles
from tests.engine.backends.test_process import opened_group
from tests.engine.fakes import PATIENCE
from tests.ran import needs_converter


@pytest.mark.paddle
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("backend", "options"),
    [
        pytest.param("paddle_inference", {"onednn": True}, id="onednn"),
        pytest.param("paddle_inference", {"cache_capacity": 0}, id="onednn, one set of weights"),
        pytest.param("paddle_inference", {"onednn": False}, id="native"),
        pytest.param("onnxruntime", {}, id="onnxruntime", marks=needs_converter),
        pytest.param("openvino", {}, id="openvino", marks=needs_converter),
    ],
)
def test_two_thousand_shapes_take_no_more_memory_than_the_largest(
    tiny: ModelFiles, backend: str, options: dict[str, Any]
) -> None:
    """In an order in which no shape follows a similar one."""
    shapes = list(product(range(1, 6), range(20, 60, 2), range(20, 60, 2)))
    np.random.default_rng(7).shuffle(shapes)
    with opened_group(tiny, backend, **options) as predictor:

        def run(rows: int, height: int, width: int) -> None:
            image = np.ones((rows, 3, height, width), np.float32)
            predictor.run({"image": image}, timeout=PATIENCE)

        run(5, 60, 60)
        run(1, 20, 20)
        before = predictor.resident_bytes()
        for shape in shapes:
            run(*shape)
        grown = (predictor.resident_bytes() - before) >> 20
    assert len(shapes) == 2000
    assert grown <= 80  # with OpenVINO's own cache: above 200
