"""What is concluded from trial runs, with predictors that only pretend."""

from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from app.contracts.errors import BackendError, ExportError, RunRefused
from app.contracts.ports import Predictor, PredictorFactory, PredictorSpec
from app.contracts.tensors import Tensors, TensorSpec
from app.making.export.seal import run_trial
from app.models.repository.config import ModelConfig

ROWS = TensorSpec("rows", "float32", (-1, 2))


def spec(*outputs: TensorSpec) -> PredictorSpec:
    return PredictorSpec(
        directory=Path("m/1"),
        program="p.json",
        params=None,
        inputs=(ROWS,),
        outputs=outputs,
        backend="paddle_inference",
        threads=1,
    )


def opening(behaviour: Callable[[Tensors], Tensors]) -> PredictorFactory:
    predictor = Mock(run=lambda inputs, timeout: behaviour(inputs))
    return lambda _spec: predictor  # type: ignore[return-value]


def test_rows_that_differ_in_length_are_no_batch() -> None:
    counts = iter((2, 3, 4, 2))
    trial = run_trial(
        spec(TensorSpec("found", "float32", (-1, 2))),
        config=ModelConfig(),
        open_predictor=opening(
            lambda inputs: {"found": np.zeros((len(inputs["rows"]), next(counts)), np.float32)}
        ),
    )
    assert trial.independent is False
    assert trial.specs == (TensorSpec("found", "float32", (-1, -1)),)


def test_why_nothing_ran_is_said() -> None:
    """A program that cannot be opened is told from one that takes no shape."""

    def refuse_to_open(_spec: PredictorSpec) -> Predictor:
        raise BackendError("the backend raised an error")

    def refuse_to_run(_inputs: Tensors) -> Tensors:
        raise RunRefused("the framework cannot run it")

    y = TensorSpec("y", "float32", (-1, 2))
    with pytest.raises(ExportError, match="cannot open the program: the backend raised an error"):
        run_trial(spec(y), config=ModelConfig(), open_predictor=refuse_to_open)  # type: ignore[arg-type]
    with pytest.raises(
        ExportError, match=r"none of the tried shapes \(the framework cannot run it\); name"
    ):
        run_trial(spec(y), config=ModelConfig(), open_predictor=opening(refuse_to_run))
