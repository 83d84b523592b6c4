"""Thousands of shapes: what engines keep for each one must not add up."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.engine.backends.process import ProcessBackend
from app.models.repository.config import InstanceGroup
from app.models.repository.layout import ModelRepository
from tests.engine.backends.test_process import opened
from tests.engine.fakes import PATIENCE
from tests.ran import needs_converter

MODELS = Path(__file__).parents[3] / "model_repo"


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
    backend: str, options: dict[str, Any]
) -> None:
    """Texts of the emotion model: up to 20 rows and 100 tokens, in any order."""
    files = ModelRepository(MODELS).read("emotion", 1)
    group = InstanceGroup(name="tested", backend=backend, options=options)
    shapes = [(rows, tokens) for rows in range(1, 21) for tokens in range(1, 101)]
    random.Random(7).shuffle(shapes)
    with opened(files.spec(group), ProcessBackend()) as predictor:

        def run(rows: int, tokens: int) -> None:
            ids = np.ones((rows, tokens), np.int64)
            predictor.run({"input_ids": ids, "attention_mask": ids}, timeout=PATIENCE)

        run(20, 100)
        run(1, 1)
        before = predictor.resident_bytes()
        for shape in shapes:
            run(*shape)
        grown = (predictor.resident_bytes() - before) >> 20
        print(f"{backend} {options}: {grown} MB")
    assert grown <= 60
