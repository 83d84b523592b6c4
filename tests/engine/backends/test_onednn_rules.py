"""Which programs keep operators on Paddle's own kernels, read from their files."""

import json
from pathlib import Path
from typing import Any

import pytest

from paddlepool.contracts.errors import BackendError
from paddlepool.engine.backends.onednn_rules import misplaced, reversed_layout
from paddlepool.engine.backends.paddle_operators import FREE, Operator, Shape, operators_of

ROOT = Path(__file__).parents[3]
LEGACY = ROOT / "tests" / "making" / "export" / "legacy" / "model.pdmodel"
PICTURE: Shape = (FREE, 3, FREE, FREE)
INPUT = Operator("data", {}, (), (PICTURE,))


def operator(
    name: str, *inputs: Shape | None, output: Shape = PICTURE, **attributes: Any
) -> Operator:
    return Operator(name, attributes, inputs, (output,))


@pytest.mark.parametrize(
    ("checked", "reason"),
    [
        (operator("divide", (FREE, 1), (FREE, 7)), "dividend"),
        (operator("divide", (FREE, 7), (FREE, 1)), ""),
        (operator("divide", (FREE, 7), ()), ""),
        (operator("divide", (1,), (FREE, 7)), "dividend"),
        (operator("divide", (FREE, 6, 1), (FREE, 1, 5)), "dividend"),
        (operator("divide", PICTURE, PICTURE), ""),
        (operator("divide", None, PICTURE), "dividend"),
        (operator("bilinear_interp", PICTURE, scale=[2.0, 2.0], align_mode=0), ""),
        (operator("bilinear_interp", PICTURE, scale=[1.5, 1.5]), "fractional"),
        (operator("bilinear_interp", PICTURE, align_mode=1), "align_mode"),
        (operator("bilinear_interp", PICTURE, align_corners=True), "align_corners"),
        (operator("bilinear_interp", PICTURE, None, None, (1,)), "fractional"),
        (operator("nearest_interp", PICTURE, scale=[2.0, 3.0]), ""),
        (operator("nearest_interp", PICTURE, scale=[0.5, 0.5]), "integers"),
        (operator("nearest_interp", PICTURE, scale=[1.5, 1.5]), "integers"),
        (operator("nearest_interp", PICTURE, scale=[]), "integers"),
        (operator("nearest_interp", (1, 3, 4, 4), output=(1, 3, 8, 12)), ""),
        (operator("nearest_interp", (1, 3, 7, 7), output=(1, 3, 5, 5)), "integers"),
        (operator("pool2d", pooling_type="avg", ceil_mode=True, exclusive=False), "padding"),
        (operator("pool2d", pooling_type="avg", ceil_mode=True, exclusive=True), ""),
        (operator("pool2d", pooling_type="max", ceil_mode=True, exclusive=False), ""),
        (operator("softplus", PICTURE, threshold=4.0), "threshold"),
        (operator("softplus", PICTURE, threshold=20.0), ""),
        (operator("layer_norm", (FREE, 4, 8), begin_norm_axis=1), "several axes"),
        (operator("layer_norm", (FREE, 4, 8), begin_norm_axis=2), ""),
        (operator("transpose", (FREE, 2, 2, 2, 2, 3)), "more than 5 axes"),
        (operator("conv2d", PICTURE, data_format="NCHW"), ""),
    ],
)
def test_an_operator_is_kept_off_onednn_where_it_would_be_wrong(
    checked: Operator, reason: str
) -> None:
    reasons = misplaced([INPUT, checked])
    assert bool(reasons) == bool(reason)
    assert all(entry.startswith(f"{checked.name}: ") and reason in entry for entry in reasons)


def test_free_axes_of_two_inputs_may_differ() -> None:
    """The rows are those of one request; other axes may be 1 in one input alone."""
    words: Shape = (FREE, FREE, 8)
    assert misplaced([INPUT, operator("divide", words, words)]) == []
    assert misplaced([INPUT, INPUT, operator("divide", words, words)])
    assert misplaced([INPUT, INPUT, operator("divide", (FREE, 8), (FREE, 8))]) == []


@pytest.mark.parametrize(("layout", "last"), [("NHWC", True), ("NDHWC", True), ("NCHW", False)])
def test_channels_last_leave_nothing_on_onednn(layout: str, last: bool) -> None:
    assert reversed_layout([INPUT, operator("conv2d", data_format=layout)]) == last
    assert reversed_layout([INPUT, operator("conv2d", data_layout=layout)]) == last


def test_the_served_models_keep_everything_on_onednn() -> None:
    programs = sorted((ROOT / "model_repo").glob("*/*/inference.json"))
    assert programs
    assert [misplaced(operators_of(program)) for program in programs] == [[]] * len(programs)


def test_operators_of_inner_blocks_and_legacy_programs_are_read(tmp_path: Path) -> None:
    tensor = {"#": "0.t_dtensor", "D": [{"#": "0.t_f32"}, [-1, 7], "NCHW", [], 0]}
    divide = {"#": "1.divide", "A": [], "I": [{"%": 1}, {"%": 1}], "O": [{"%": 2, "TT": tensor}]}
    inner = {"regions": [{"blocks": [{"ops": [divide]}]}]}
    outer = [
        {"#": "p", "A": [0, 1, "w"], "O": {"%": 1, "TT": tensor}},
        {"#": "1.if", "A": [], "I": [], "O": [], **inner},
    ]
    program = tmp_path / "program.json"
    program.write_text(json.dumps({"program": {"regions": [{"blocks": [{"ops": outer}]}]}}))
    assert [entry.name for entry in operators_of(program)] == ["", "if", "divide"]
    assert operators_of(program)[2].inputs == ((-1, 7), (-1, 7))
    assert {"conv2d", "embedding"} <= {entry.name for entry in operators_of(LEGACY)}


@pytest.mark.parametrize("suffix", ["json", "pdmodel"])
def test_another_file_is_no_program(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"inference.{suffix}"
    with pytest.raises(BackendError, match=f"^inference.{suffix} cannot be read: No such file"):
        operators_of(file)
    file.write_bytes(b"\xff\xff")
    with pytest.raises(BackendError, match=f"^inference.{suffix} is not a Paddle program"):
        operators_of(file)
