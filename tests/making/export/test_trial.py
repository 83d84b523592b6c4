"""What is concluded from trial runs, with predictors that only pretend."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import onnx
import pytest
from onnx import helper

from paddlepool.contracts.errors import (
    BackendError,
    ConfigError,
    ExportError,
    RunRefused,
    WorkerCrashed,
)
from paddlepool.contracts.ports import Predictor, PredictorFactory, PredictorSpec
from paddlepool.contracts.tensors import Array, Tensors, TensorSpec
from paddlepool.making.export.sealed_groups import (
    Usage,
    check_configured,
    check_usual,
    config_text,
)
from paddlepool.making.export.trial import Trial, run_trial
from paddlepool.making.export.trial_rows import batching_warning, selecting_operator
from paddlepool.models.repository.config import ModelConfig, parse_config

ROWS = TensorSpec("rows", "float32", (-1, 2))
PICTURE = TensorSpec("x", "float32", (-1, 3, -1, -1))
TOKENS = TensorSpec("ids", "int64", (-1, -1))
MASK = TensorSpec("mask", "int64", (-1, -1))
Y = TensorSpec("y", "float32", (-1, -1))
PAIR = TensorSpec("y", "float32", (-1, 2))

Feeds = Mapping[str, Any]
Behaviour = Callable[[Feeds], Tensors]


def spec(
    *outputs: TensorSpec, inputs: tuple[TensorSpec, ...] = (ROWS,), directory: Path = Path("m/1")
) -> PredictorSpec:
    return PredictorSpec(
        directory=directory,
        program="p.json",
        params=None,
        inputs=inputs,
        outputs=outputs,
        backend="paddle_inference",
        threads=1,
    )


def opening(
    behaviour: Behaviour, others: Mapping[str, Behaviour] | None = None
) -> PredictorFactory:
    """Opens predictors with one behaviour, but for groups named by their switch or backend."""

    def open_predictor(opened: PredictorSpec) -> Predictor:
        switched = next((name for name, on in opened.options.items() if on is True), opened.backend)
        chosen = (others or {}).get(switched, behaviour)
        return Mock(run=lambda inputs, timeout: chosen(inputs), failure=lambda: None)

    return open_predictor  # type: ignore[return-value]


def tried(behaviour: Behaviour, *outputs: TensorSpec, **options: Any) -> Trial:
    of_program = {key: options.pop(key) for key in ("inputs", "directory") if key in options}
    usual: dict[str, Any] = {"config": ModelConfig(), "open_predictor": opening(behaviour)}
    return run_trial(spec(*outputs, **of_program), **usual | options)


def test_rows_that_differ_in_length_are_no_batch() -> None:
    lengths = count(2)
    trial = tried(
        lambda inputs: (
            {"found": np.zeros((len(inputs["rows"]), next(lengths) % 5), np.float32)}
            if len(inputs["rows"]) == 2
            else {"found": np.zeros((1, 3), np.float32)}
        ),
        TensorSpec("found", "float32", (-1, 2)),
    )
    assert trial.independent is False
    assert trial.specs == (TensorSpec("found", "float32", (-1, -1)),)


def test_several_detections_of_a_row_are_no_batch() -> None:
    """Their outputs are those of the rows alone, and nothing tells which row has which."""
    trial = tried(
        lambda inputs: {"found": np.repeat(np.asarray(inputs["rows"]), 2, 0)},
        TensorSpec("found", "float32", (-1, 2)),
    )
    assert trial.independent is False


@pytest.mark.parametrize(
    "condition",
    [lambda rows: rows.mean() > 0, lambda rows: np.abs(rows).max() > 0.5],
    ids=["mean", "largest"],
)
def test_rows_that_share_a_condition_are_no_batch(
    condition: Callable[[np.ndarray[Any, Any]], bool],
) -> None:
    """Beside a usual row, another usual one would show nothing: both meet the condition."""

    def branch(inputs: Feeds) -> Tensors:
        rows = np.asarray(inputs["rows"])
        return {"found": rows * 2 if condition(rows) else rows - 10}

    trial = tried(branch, TensorSpec("found", "float32", (-1, 2)))
    assert trial.independent is False


def near(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """How many rows of the batch are within 0.1 of each."""
    return (np.abs(rows[:, None] - rows[None]).max(-1) < 0.1).sum(1)


def covered(boxes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Whether a box with larger corners covers most of each: what NMS suppresses."""
    low = np.maximum(boxes[:, None, :2], boxes[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
    sides, shared = (boxes[:, 2:] - boxes[:, :2]).clip(0), (high - low).clip(0)
    areas, inside = sides.prod(-1), shared.prod(-1)
    overlap = inside / (areas[:, None] + areas[None] - inside + 1e-6)
    return ((overlap > 0.6) & (boxes.sum(1)[None] > boxes.sum(1)[:, None])).any(1)


@pytest.mark.parametrize(
    ("columns", "compared"),
    [
        (2, near),
        (2, lambda rows: (rows[:, None] == rows[None]).all(-1).sum(1)),
        (4, covered),
    ],
    ids=["counted", "duplicates", "suppressed"],
)
def test_rows_that_are_compared_are_no_batch(
    columns: int, compared: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]
) -> None:
    """Random rows are far from each other, and random boxes no boxes."""

    def crowded(inputs: Feeds) -> Tensors:
        rows = np.asarray(inputs["rows"])
        return {"y": rows + compared(rows).astype(np.float32)[:, None]}

    shape = (-1, columns)
    rows, y = (TensorSpec(name, "float32", shape) for name in ("rows", "y"))
    assert tried(crowded, y, inputs=(rows,)).independent is False


def doubled(inputs: Feeds) -> Tensors:
    return {"y": np.asarray(inputs["rows"]) * 2}


@pytest.mark.parametrize(
    ("operator", "independent"), [("nms", False), ("nonzero", False), ("scale", True)]
)
def test_rows_of_a_program_that_selects_by_values_are_no_batch(
    tmp_path: Path, operator: str, independent: bool
) -> None:
    """What it selects of random numbers may be all of them."""
    op = {"#": f"1.{operator}", "A": [], "I": [], "O": []}
    program = {"program": {"regions": [{"blocks": [{"ops": [op]}]}]}}
    (tmp_path / "p.json").write_text(json.dumps(program), "utf-8")
    trial = tried(doubled, PAIR, directory=tmp_path)
    assert trial.independent is independent
    note = f"{operator} selects by values: its rows may depend on each other"
    assert trial.notes == (() if independent else (note,))


def test_rows_of_an_onnx_program_that_selects_are_no_batch(tmp_path: Path) -> None:
    nodes = [helper.make_node("NonZero", ["rows"], ["y"])]
    values = [helper.make_tensor_value_info(name, 1, [None, 2]) for name in ("rows", "y")]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:])
    onnx.save(helper.make_model(graph), tmp_path / "p.onnx")
    program = tmp_path / "p.onnx"
    assert selecting_operator(program) == "NonZero"
    assert "max_batch_size is 8 and NonZero selects by values" in batching_warning(program, 8)
    assert batching_warning(program, 0) == ""
    assert batching_warning(tmp_path / "absent.onnx", 8) == ""


def test_an_integer_that_is_a_size_is_tried_as_a_small_one() -> None:
    """A large one takes all memory, and its outputs would be stored with the version."""

    def mask_of(inputs: Feeds) -> Tensors:
        lengths = np.asarray(inputs["n"])
        assert lengths.max() < 1 << 25
        return {"y": np.zeros((len(lengths), lengths.max()), np.float32)}

    lengths = TensorSpec("n", "int64", (-1,))
    trial = tried(mask_of, Y, inputs=(lengths,))
    [note] = trial.notes
    assert note.startswith("n decides the size of an output; sealing tries integers below 1638")
    assert all(case.outputs["y"].nbytes < 3 << 20 for case in trial.selftest.cases)


def test_a_run_without_an_end_ends_the_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, each of many further runs would take as long."""
    monkeypatch.setattr("paddlepool.making.export.trial.RUN_SECONDS", 0.0)
    runs = Mock(side_effect=WorkerCrashed("the run was ended"))
    with pytest.raises(ExportError, match="did not end within 0 s"):
        tried(runs, TensorSpec("found", "float32", (-1, 2)))
    assert runs.call_count == 1


def test_why_nothing_ran_is_said() -> None:
    """A program that cannot be opened is told from one that takes no shape."""

    def refuse_to_open(_spec: PredictorSpec) -> Predictor:
        raise BackendError("the backend raised an error")

    def refuse_to_run(_inputs: Feeds) -> Tensors:
        raise RunRefused("the framework cannot run it")

    with pytest.raises(ExportError, match="cannot open the program: the backend raised an error"):
        run_trial(spec(PAIR), config=ModelConfig(), open_predictor=refuse_to_open)  # type: ignore[arg-type]
    with pytest.raises(
        ExportError, match=r"none of the tried shapes \(the framework cannot run it\); name"
    ):
        tried(refuse_to_run, PAIR)


def summed(inputs: Feeds) -> Tensors:
    [x] = inputs.values()
    return {"y": np.asarray(x.sum((1, 2)), np.float32)}


def test_inputs_have_no_peculiarity_that_could_hide_a_fault() -> None:
    """Both signs, two rows that differ, odd and unequal sizes, at least two of each free axis."""
    trial = tried(summed, Y, inputs=(PICTURE,))
    pictures = [np.asarray(case.inputs["x"]) for case in trial.selftest.cases]
    for picture in pictures:
        assert picture.min() < -5
        assert 5 < picture.max() <= 8
    assert pictures[0].shape == (1, 3, 320, 480)
    assert {len(picture) for picture in pictures} == {1, 2}
    assert (2, 3, 33, 37) in {picture.shape for picture in pictures}
    for rows in (picture for picture in pictures if len(picture) == 2):
        assert not np.array_equal(rows[0], rows[1])
    again = tried(summed, Y, inputs=(PICTURE,))
    assert np.array_equal(np.asarray(again.selftest.inputs["x"]), pictures[0])


def test_a_large_program_of_one_size_is_kept_once() -> None:
    """Its rows are still tried together; only the first case is part of the version."""

    def enlarged(inputs: Feeds) -> Tensors:
        return {
            "y": np.broadcast_to(
                inputs["rows"].sum(1)[:, None, None], (len(inputs["rows"]), 3000, 3000)
            )
        }

    trial = tried(enlarged, TensorSpec("y", "float32", (-1, 3000, 3000)))
    assert trial.independent is True
    assert [len(case.inputs["rows"]) for case in trial.selftest.cases] == [1]
    assert trial.source == "its only size but for the rows"


def multiples_of_32(inputs: Feeds) -> Tensors:
    if any(size % 32 for size in inputs["x"].shape[2:]):
        raise RunRefused("sizes must be multiples of 32")
    return summed(inputs)


def test_sizes_come_from_whoever_names_them_first(tmp_path: Path) -> None:
    """An .npz, --shape, [[warmup]], inference.yml, else usual sizes; others are tried besides."""
    (tmp_path / "inference.yml").write_text(
        "Hpi: {backend_configs: {paddle_infer: {trt_dynamic_shapes: "
        "{x: [[1, 3, 32, 32], [1, 3, 736, 736], [1, 3, 4000, 4000]]}}}}"
    )
    described = {"inputs": (PICTURE,), "directory": tmp_path}
    warm = parse_config(b"[[warmup]]\nshapes = { x = [1, 3, 96, 64] }")
    real = {"x": np.ones((1, 3, 64, 32), np.float32)}
    for first, source, options in (
        ((1, 3, 736, 736), "inference.yml", {}),
        ((1, 3, 96, 64), "[[warmup]]", {"config": warm}),
        ((1, 3, 128, 64), "--shape", {"config": warm, "shapes": [{"x": (1, 3, 128, 64)}]}),
        ((1, 3, 64, 32), "--input", {"shapes": [{"x": (1, 3, 128, 64)}], "real_inputs": [real]}),
    ):
        trial = tried(multiples_of_32, Y, **described, **options)
        sizes = [case.inputs["x"].shape for case in trial.selftest.cases]
        assert (sizes[0], trial.source) == (first, source)
        assert {(2, 3, 64, 96), (2, 3, 224, 256)} <= set(sizes)
    with pytest.raises(ConfigError, match=r"--shape: x of shape \[1, 4, 8, 8\] does not fit"):
        tried(summed, Y, inputs=(PICTURE,), shapes=[{"x": (1, 4, 8, 8)}])
    with pytest.raises(ExportError, match="--shape: x 1×3×33×32: sizes must be multiples of 32"):
        tried(multiples_of_32, Y, inputs=(PICTURE,), shapes=[{"x": (1, 3, 33, 32)}])


@pytest.mark.parametrize("size", range(21125, 21129))
def test_token_ids_reach_the_end_of_the_vocabulary_and_masks_are_masks(size: int) -> None:
    def looked_up(inputs: Feeds) -> Tensors:
        if np.asarray(inputs["ids"]).max() >= size:
            raise RunRefused("an id is out of range")
        return {"y": np.asarray(inputs["ids"] * inputs["mask"], np.float32)}

    trial = tried(looked_up, Y, inputs=(TOKENS, MASK))
    assert max(int(case.inputs["ids"].max()) for case in trial.selftest.cases) == size - 1
    assert max(int(case.inputs["mask"].max()) for case in trial.selftest.cases) == 1
    assert f"ids takes integers below {size}" in trial.notes
    assert {case.inputs["ids"].shape for case in trial.selftest.cases} >= {(1, 64), (2, 7)}


def test_each_column_may_have_a_vocabulary_of_its_own() -> None:
    """Random ids below a range could all happen to be in it."""

    def looked_up(inputs: Feeds) -> Tensors:
        if (np.asarray(inputs["ids"]) >= np.arange(5, 31)).any():
            raise RunRefused("an id is out of range")
        return {"y": np.asarray(inputs["ids"], np.float32)}

    fields = TensorSpec("ids", "int64", (-1, 26))
    trial = tried(looked_up, TensorSpec("y", "float32", (-1, 26)), inputs=(fields,))
    assert trial.notes == ("ids takes integers below 5",)
    assert trial.independent is True


def test_integers_that_are_no_ids_exceed_32_bits() -> None:
    y = TensorSpec("y", "int64", (-1, -1))
    trial = tried(lambda inputs: {"y": np.asarray(inputs["ids"]) * 2}, y, inputs=(TOKENS,))
    assert int(trial.selftest.inputs["ids"].max()) > 1 << 32


def test_integers_with_infinite_results_stay_small() -> None:
    def limited(inputs: Feeds) -> Tensors:
        ids = np.asarray(inputs["ids"])
        return {"y": np.where(ids > 100, np.inf, ids).astype(np.float32)}

    trial = tried(limited, Y, inputs=(TOKENS,))
    assert int(trial.selftest.inputs["ids"].max()) == 1


def test_a_program_that_takes_no_negative_numbers_gets_none() -> None:
    def logarithm(inputs: Feeds) -> Tensors:
        with np.errstate(invalid="ignore"):
            return {"y": np.log1p(inputs["rows"])}

    trial = tried(logarithm, PAIR)
    assert all(np.asarray(case.inputs["rows"]).min() >= 0 for case in trial.selftest.cases)
    assert "not finite for numbers of both signs" in trial.notes[0]


FRAMES = TensorSpec("x", "float32", (-1, -1, 2))


def pooled(inputs: Feeds, window: int, *, mean: bool) -> Tensors:
    """Means of windows, or their mean; there are none in a sequence that is too short."""
    x = np.asarray(inputs["x"])
    kept = x.shape[1] // window * window
    windows = x[:, :kept].reshape(len(x), -1, window, 2).mean(2)
    with np.errstate(invalid="ignore"):
        return {"y": windows.sum(1) / np.float32(windows.shape[1]) if mean else windows}


@pytest.mark.parametrize("mean", [True, False])
def test_a_size_at_which_nothing_is_found_tells_nothing(mean: bool) -> None:
    """An empty output there, or none that is finite; only if no size is better, it is taken."""
    y = TensorSpec("y", "float32", (-1, 2) if mean else (-1, -1, 2))
    trial = tried(lambda inputs: pooled(inputs, 9, mean=mean), y, inputs=(FRAMES,))
    assert [case.inputs["x"].shape[1] for case in trial.selftest.cases] == [64, 12, 24]
    assert trial.independent is True
    sound = tried(lambda inputs: pooled(inputs, 400, mean=mean), y, inputs=(FRAMES,))
    assert all(array.size for case in sound.selftest.cases for array in case.outputs.values())
    if not mean:
        hidden = tried(lambda inputs: pooled(inputs, 9999, mean=False), y, inputs=(FRAMES,))
        assert hidden.selftest.inputs["x"].shape == (1, 64, 2)
        return
    with pytest.raises(ExportError, match=r"output y is not finite for random .* with --input"):
        tried(lambda inputs: pooled(inputs, 9999, mean=True), y, inputs=(FRAMES,))
    real = {"x": np.ones((2, 9999, 2), np.float32)}
    trial = tried(lambda i: pooled(i, 9999, mean=True), y, inputs=(FRAMES,), real_inputs=[real])
    assert (trial.source, trial.independent) == ("--input", True)


def test_rows_that_could_not_be_tried_are_never_divided() -> None:
    """Here the rows would have depended on each other."""

    def centred(inputs: Feeds) -> Tensors:
        if inputs["rows"].shape[0] != 6:
            raise RunRefused("takes six rows")
        return {"y": inputs["rows"] - np.asarray(inputs["rows"]).mean(0)}

    trial = tried(centred, PAIR, shapes=[{"rows": (6, 2)}])
    assert trial.independent is False
    groups = check_usual(spec(PAIR), trial.selftest, opening(centred))
    text = config_text(trial, groups, real=False)
    assert parse_config(text.encode()).dynamic_batching.max_batch_size == 0


def test_several_rows_are_tried_beside_an_input_without_rows() -> None:
    limit = TensorSpec("limit", "float32", (1,))
    trial = tried(
        lambda inputs: {"y": np.minimum(inputs["rows"], inputs["limit"])},
        PAIR,
        inputs=(ROWS, limit),
    )
    assert trial.independent is None
    assert {len(case.inputs["rows"]) for case in trial.selftest.cases} == {1, 2}


def test_named_shapes_are_tried_with_other_rows() -> None:
    """Two inputs whose lengths have a ratio, which no usual size has."""
    frames, tones = FRAMES, TensorSpec("tones", "float32", (-1, -1, 2))

    def added(inputs: Feeds) -> Tensors:
        x, tones = np.asarray(inputs["x"]), np.asarray(inputs["tones"])
        if tones.shape[1] != 2 * x.shape[1]:
            raise RunRefused("twice as many tones as frames")
        return {"y": x + tones[:, ::2]}

    trial = tried(
        added,
        TensorSpec("y", "float32", (-1, -1, 2)),
        inputs=(frames, tones),
        shapes=[{"x": (1, 20, 2), "tones": (1, 40, 2)}],
    )
    assert trial.independent is True
    assert [len(case.inputs["x"]) for case in trial.selftest.cases] == [1, 2]


def test_a_random_program_is_refused() -> None:
    generator = np.random.default_rng(1)

    with pytest.raises(ExportError, match="the program is random: on the same input, output 'y'"):
        tried(lambda x: {"y": generator.random(x["rows"].shape, np.float32)}, PAIR)


def test_only_what_the_program_fixes_stays_fixed() -> None:
    """An undeclared rank, a declared size that does not follow the input, a free last axis."""

    def transposed(inputs: Feeds) -> Tensors:
        x = np.asarray(inputs["x"])
        return {"a": x[:, 0].transpose(1, 0, 2), "b": x.mean((2, 3)), "c": x.mean((1, 2))}

    trial = tried(
        transposed,
        TensorSpec("a", "float32", ()),
        TensorSpec("b", "float32", (-1, 3)),
        TensorSpec("c", "float32", (1, 480)),
        inputs=(PICTURE,),
    )
    assert [output.shape for output in trial.specs] == [(-1, -1, -1), (-1, 3), (-1, -1)]

    with pytest.raises(ExportError, match="output y has 1 or 2 axes, depending on the input"):
        tried(lambda x: {"y": np.squeeze(np.asarray(x["rows"]))}, TensorSpec("y", "float32", ()))


WRONG: dict[str, Callable[[Any], Array]] = {
    "for negative numbers": lambda x: np.abs(x),
    "for large numbers": lambda x: np.minimum(x, 6),
    "for several rows": lambda x: np.repeat(x[:1], len(x), 0),
    "at odd sizes": lambda x: x if x.shape[3] % 2 == 0 else x * np.float32(1.01),
    "at large sizes": lambda x: x if x.shape[3] < 400 else x * np.float32(0.99),
    "in a few values of many": lambda x: np.where(np.arange(x.shape[3]) == 5, x * 2, x),
    "in its type": lambda x: np.asarray(x, np.float64),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_group_that_is_wrong_somewhere_is_refused(fault: str) -> None:
    """However right it is elsewhere; the next group that is right takes its place."""
    shown = TensorSpec("y", "float32", (-1, 3, -1, -1))

    def wrong(inputs: Feeds) -> Tensors:
        return {"y": WRONG[fault](np.asarray(inputs["x"]))}

    faulty = dict.fromkeys(("onednn", "bfloat16", "openvino"), wrong)
    wrongly = opening(lambda inputs: {"y": np.asarray(inputs["x"])}, faulty)
    opened = spec(shown, inputs=(PICTURE,))
    trial = run_trial(opened, config=ModelConfig(), open_predictor=wrongly)
    groups = check_usual(opened, trial.selftest, wrongly)
    refused = {group.name for group in groups if group.refusal}
    assert {"onednn", "openvino"} <= refused
    assert not refused & {"native", "onnxruntime"}
    assert "; x " in next(group.refusal for group in groups if group.name == "onednn")
    text = config_text(trial, groups, real=False)
    config = parse_config(text.encode())
    assert (config.first_group, config.default_group) == ("native", "native")
    assert "# onednn is left out: self-test: output 'y'" in text


def test_a_group_whose_process_dies_is_left_out() -> None:
    def crash(_inputs: Feeds) -> Tensors:
        raise WorkerCrashed("the predictor process ended during the run (crashed)")

    crashing = opening(
        lambda inputs: {"y": np.asarray(inputs["rows"])}, {"bfloat16": crash, "openvino": crash}
    )
    trial = run_trial(spec(PAIR), config=ModelConfig(), open_predictor=crashing)
    groups = check_usual(spec(PAIR), trial.selftest, crashing)
    text = config_text(trial, groups, real=True)
    served = [group.name for group in parse_config(text.encode()).instance_group]
    assert served == ["onednn", "native", "onnxruntime"]
    for name in ("onednn_bf16", "openvino", "openvino_bf16"):
        assert (
            f"# {name} is left out: the predictor process ended during the run (crashed)\n" in text
        )


def test_a_default_group_that_is_wrong_ends_sealing() -> None:
    wrongly = opening(
        lambda inputs: {"y": np.asarray(inputs["rows"])},
        {"onednn": lambda inputs: {"y": np.abs(inputs["rows"])}},
    )
    opened = spec(PAIR)
    trial = run_trial(opened, config=ModelConfig(), open_predictor=wrongly)
    with pytest.raises(ExportError, match="the default group onednn of config"):
        check_configured(opened, ModelConfig(), trial.selftest, wrongly)
    text = (
        b'default_group = "auto"\n[[instance_group]]\nname = "onednn"\nbackend = "paddle_inference"'
        b"\noptions = { onednn = true }\n"
        b'[[instance_group]]\nname = "native"\nbackend = "paddle_inference"\nstart = "on_demand"\n'
        b"options = { onednn = false }"
    )
    groups = check_configured(opened, parse_config(text), trial.selftest, wrongly)
    assert [bool(group.refusal) for group in groups] == [True, False]
    alone = replace(opened, format="onnx")
    failing = opening(lambda inputs: {"y": np.abs(inputs["rows"])})
    with pytest.raises(ExportError, match="cannot be served: onnxruntime"):
        check_usual(alone, trial.selftest, failing)


def test_bfloat16_is_a_candidate_only_on_real_inputs() -> None:
    rounding = opening(
        lambda inputs: {"y": np.asarray(inputs["rows"])},
        {"bfloat16": lambda inputs: {"y": inputs["rows"] * np.float32(1.004)}},
    )
    trial = run_trial(spec(PAIR), config=ModelConfig(), open_predictor=rounding)
    groups = check_usual(spec(PAIR), trial.selftest, rounding)
    for real in (False, True):
        config = parse_config(config_text(trial, groups, real=real).encode())
        group = config.group("onednn_bf16")
        assert group.candidate is real
        assert group.budget is not None
        assert group.budget.mean_difference is not None
        assert 0 < group.budget.mean_difference < 0.1
        two = [each for each in groups if each.name in ("native", "onednn_bf16")]
        config = parse_config(config_text(trial, two, real=real).encode())
        assert (config.first_group is not None) is real  # "auto", or native alone
    usage = Usage(on_demand=True)
    assert parse_config(config_text(trial, groups, usage, real=True).encode()).starts_on_demand


@pytest.mark.parametrize(
    ("lower", "refusal"),
    [
        (lambda rows: rows[1:], "output y has the shape [0, 2] in place of [1, 2]"),
        (lambda rows: rows * np.float32(np.nan), "output y differs by inf on average"),
    ],
    ids=["another shape", "not a number"],
)
def test_what_bfloat16_cannot_compute_is_refused(
    lower: Callable[[Array], Array], refusal: str
) -> None:
    """A detector finds something else; no mean difference tells that."""
    y = TensorSpec("y", "float32", (-1, 2))
    rounding = opening(
        lambda inputs: {"y": np.asarray(inputs["rows"])},
        {"bfloat16": lambda inputs: {"y": lower(np.asarray(inputs["rows"]))}},
    )
    trial = run_trial(spec(y), config=ModelConfig(), open_predictor=rounding)
    refusals = {each.name: each.refusal for each in check_usual(spec(y), trial.selftest, rounding)}
    assert refusals["onednn_bf16"].startswith(refusal)


def test_the_mask_of_a_text_is_no_picture() -> None:
    mask = TensorSpec("mask", "bool", (-1, 1, 1, -1))
    trial = tried(
        lambda inputs: {"y": np.asarray(inputs["ids"] % 1000, np.float32)}, Y, inputs=(TOKENS, mask)
    )
    assert trial.selftest.inputs["ids"].shape == (1, 64)
