"""The golden test of a version: what may be in it, and what it finds."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from paddlepool.contracts.errors import BackendError, ConfigError, ManifestError
from paddlepool.contracts.ports import ServedModelInfo
from paddlepool.contracts.resources import processor
from paddlepool.contracts.tensors import Array, TensorSpec
from paddlepool.models.repository.config import Budget, InstanceGroup
from paddlepool.models.repository.selftest import (
    Case,
    SelfTest,
    read_selftest,
    too_small,
    write_selftest,
)
from paddlepool.tasks.segment.pipeline import mask_agreement

INPUTS = (TensorSpec("x", "float32", (-1, 2)),)
BOXES = TensorSpec("boxes", "int64", (-1, 4))
X = np.ones((1, 2), np.float32)
NONE = np.zeros((0, 4), np.int64)


def answering(*outputs: Mapping[str, Array]) -> Any:
    """A predictor whose runs return these outputs in turn; only run() is ever called here."""
    runs = cycle(outputs)
    return Mock(run=lambda *_, **__: next(runs))


def written(
    directory: Path, *, x: Array | None = X, boxes: Array = NONE, tolerance: object = 0.1
) -> Path:
    arrays: dict[str, Any] = {"output.boxes": boxes} | ({} if x is None else {"input.x": x})
    np.savez(directory / "selftest.npz", tolerance=np.array(tolerance), **arrays)
    return directory


def test_an_output_may_be_empty_along_a_free_axis(tmp_path: Path) -> None:
    test = read_selftest(written(tmp_path), INPUTS, (BOXES,))
    test.check(answering({"boxes": NONE}), timeout=1)
    for wrong, described in (
        (np.zeros((1, 4), np.int64), r"int64 \[1, 4\]"),
        (np.zeros((0, 4), np.float32), r"float32 \[0, 4\]"),
    ):
        with pytest.raises(BackendError, match=rf"int64 \[0, 4\], received {described}"):
            test.check(answering({"boxes": wrong}), timeout=1)


@pytest.mark.parametrize(
    ("arrays", "outputs", "named"),
    [
        ({}, TensorSpec("boxes", "int64", (1, 4)), r"output.boxes should be int64 \[1, 4\]"),
        ({"x": X[:0]}, BOXES, r"input.x should be float32 \[-1, 2\], received float32 \[0, 2\]"),
        ({"boxes": NONE.astype(np.int32)}, BOXES, r"received int32 \[0, 4\]"),
        ({"tolerance": "abc"}, BOXES, "tolerance must be one positive number"),
        ({"tolerance": -1.0}, BOXES, "tolerance must be one positive number"),
    ],
    ids=["a fixed axis", "an empty input", "another dtype", "a word", "a negative tolerance"],
)
def test_what_proves_nothing_is_refused(
    arrays: Mapping[str, Any], outputs: TensorSpec, named: str, tmp_path: Path
) -> None:
    """An empty output where the size is fixed, and an empty input anywhere."""
    with pytest.raises(ManifestError, match=named):
        read_selftest(written(tmp_path, **arrays), INPUTS, (outputs,))


@pytest.mark.parametrize("cut", [0, 100, -40], ids=["nothing", "no archive", "its directory cut"])
def test_what_is_no_archive_of_arrays_is_refused(cut: int, tmp_path: Path) -> None:
    archive = written(tmp_path) / "selftest.npz"
    archive.write_bytes(archive.read_bytes()[:cut])
    with pytest.raises(ManifestError, match="cannot be read as arrays"):
        read_selftest(tmp_path, INPUTS, (BOXES,))


def test_pickled_objects_are_not_opened(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="cannot be read as arrays"):
        read_selftest(written(tmp_path, x=np.array([{}])), INPUTS, (BOXES,))


def test_an_output_of_another_dtype_or_no_number_is_found() -> None:
    """However near its values are: /v2 promises the dtype as well."""
    test = SelfTest(inputs={"x": X}, outputs={"y": X}, tolerance=1.0)
    test.check(answering({"y": X}), timeout=1)
    with pytest.raises(BackendError, match=r"float32 \[1, 2\], received float64 \[1, 2\]"):
        test.check(answering({"y": X.astype(np.float64)}), timeout=1)
    with pytest.raises(BackendError, match="differs by nan"):
        test.check(answering({"y": X * np.float32(np.nan)}), timeout=1)


PICTURE = TensorSpec("input", "float32", (-1, 3, 320, 320))
MASK = TensorSpec("mask", "float32", (1, 1, 16, 16))
DISC = (np.hypot(*np.mgrid[-8:8, -8:8]) < 6).astype(np.float32)[None, None]


def judged(budget: Mapping[str, float], *, task: bool = True) -> SelfTest:
    """The test of a group in lower precision, whose golden output is a disc."""
    info = ServedModelInfo(
        name="m",
        version=1,
        directory=Path(),
        inputs=(PICTURE,),
        outputs=(MASK,),
        pipeline="segment",
    )
    group = InstanceGroup(name="low", backend="fake", budget=Budget(**budget))
    test = SelfTest(
        inputs={"x": X},
        outputs={"mask": DISC},
        tolerance=1e-3,
        agreement=mask_agreement(info) if task else None,
    )
    return test.judging(group)


def test_a_lower_precision_is_judged_by_its_quality() -> None:
    """One pixel at an edge may be far off: on average and as a mask nothing is lost."""
    near = DISC * np.float32(0.997)
    near[0, 0, 2, 8] -= np.float32(0.109)
    test = judged({"mean_difference": 0.015, "agreement": 0.95})
    test.check(answering({"mask": near}), timeout=1)
    quality = test.quality({"mask": near})
    assert quality.largest_difference > 0.1
    assert 0 < quality.mean_difference < 0.015
    assert quality.agreement == 1.0
    by_tolerance = test.judging(InstanceGroup(name="low", backend="fake", tolerance=0.05))
    with pytest.raises(BackendError, match=r"differs by 0\.1\d* .* limit 0\.05"):
        by_tolerance.check(answering({"mask": near}), timeout=1)


@pytest.mark.parametrize(
    ("mask", "budget", "named"),
    [
        (np.clip(DISC - 0.02, 0, 1), {"mean_difference": 0.005}, r"0\.00\d+ on average.*0\.005"),
        (
            np.roll(DISC, 3, axis=3),
            {"agreement": 0.95},
            r"agreement .* is 0\.\d+, the budget is 0\.95",
        ),
        (DISC * np.nan, {"mean_difference": 0.5}, r"inf on average"),
        (DISC * np.nan, {"agreement": 0.1}, r"NaN|agree"),
    ],
    ids=["too far on average", "another mask", "not a number", "not a number as a mask"],
)
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_what_exceeds_its_budget_is_refused(
    mask: Array, budget: Mapping[str, float], named: str
) -> None:
    with pytest.raises(BackendError, match=named):
        judged(budget).check(answering({"mask": mask.astype(np.float32)}), timeout=1)


def test_the_agreement_is_that_of_real_inputs(tmp_path: Path) -> None:
    """What a model sees in noise changes with every rounding; its numbers must be finite."""
    case = Case(inputs={"x": np.ones_like(X)}, outputs={"mask": DISC})
    test = replace(judged({"agreement": 0.95}), more=(case,))

    predictor = answering({"mask": DISC}, {"mask": 1 - DISC})
    with pytest.raises(BackendError, match="the agreement"):
        test.check(predictor, timeout=1)
    real = replace(test, real=1)
    real.check(predictor, timeout=1)
    with pytest.raises(BackendError, match="self-test"):
        real.check(answering({"mask": DISC}, {"mask": np.full_like(DISC, np.nan)}), timeout=1)
    with pytest.raises(BackendError, match="the agreement"):
        real.check(answering({"mask": 1 - DISC}, {"mask": DISC}), timeout=1)
    write_selftest(tmp_path, real)
    assert read_selftest(tmp_path, INPUTS, (MASK,)).real == 1


@pytest.mark.parametrize("program", ["int8", None])
def test_the_likely_cause_of_a_refusal_is_told(
    program: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A float32 group that is wrong is wrong for another reason."""
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("flags : avx2\n")
    told = processor(cpuinfo)
    monkeypatch.setattr("paddlepool.models.repository.selftest.processor", lambda: told)
    budget = Budget(mean_difference=0.005, agreement=0.95)
    group = InstanceGroup(name="low", backend="fake", program=program, budget=budget)
    test = judged({"agreement": 0.95}).judging(group)
    with pytest.raises(BackendError) as refusal:
        test.check(answering({"mask": 1 - DISC}), timeout=1)
    assert ("adds eight-bit products in 16 bits" in str(refusal.value)) == (program is not None)


def test_an_agreement_that_nothing_measures_is_a_wrong_configuration() -> None:
    """A model without a task is judged by its mean difference alone."""
    answers = answering({"mask": DISC})
    judged({"mean_difference": 0.01}, task=False).check(answers, timeout=1)
    with pytest.raises(ConfigError, match=r"budget\.agreement needs a model whose task"):
        judged({"agreement": 0.9}, task=False).check(answers, timeout=1)


def test_every_case_is_checked_and_kept(tmp_path: Path) -> None:
    """An engine may be right on the first input and wrong on another; its shape is named."""
    cases = [Case(inputs={"x": X}, outputs={"boxes": np.full((n, 4), n)}) for n in (1, 2, 3)]
    first, *more = cases
    written = SelfTest(
        inputs=first.inputs, outputs=first.outputs, tolerance=0.1, more=tuple(more), relative=True
    )
    write_selftest(tmp_path, written)
    test = read_selftest(tmp_path, INPUTS, (BOXES,))
    assert [case.outputs["boxes"].shape for case in test.cases] == [(1, 4), (2, 4), (3, 4)]
    assert test.relative
    answers = iter([case.outputs for case in test.cases])
    test.check(Mock(run=lambda _inputs, timeout: next(answers)), timeout=1)
    wrong = iter([case.outputs for case in test.cases[:2]] + [{"boxes": NONE}])
    with pytest.raises(BackendError, match=r"received int64 \[0, 4\]; x 1×2$"):
        test.check(Mock(run=lambda _inputs, timeout: next(wrong)), timeout=1)


def relative(expected: Array) -> SelfTest:
    return SelfTest(inputs={"x": X}, outputs={"y": expected}, tolerance=1e-3, relative=True)


def test_huge_values_do_not_hide_wrong_small_ones() -> None:
    """As where a numerator and its denominator were exchanged."""
    expected = np.concatenate([np.ones(999), [1e5]])
    found = expected.copy()
    relative(expected).check(answering({"y": found}), timeout=1)
    found[-1] *= 1.0009
    relative(expected).check(answering({"y": found}), timeout=1)
    found[7] = 3.5
    with pytest.raises(BackendError, match=r"has 3\.5 in place of 1, .* 0\.1% of its values"):
        relative(expected).check(answering({"y": found}), timeout=1)


def test_rounding_where_nearly_everything_is_0_is_no_fault() -> None:
    expected = np.zeros(1000, np.float32)
    expected[:5] = 1.0
    relative(expected).check(answering({"y": expected + np.float32(5e-6)}), timeout=1)
    relative(expected[10:]).check(answering({"y": expected[10:] + np.float32(5e-7)}), timeout=1)
    with pytest.raises(BackendError, match="in place of"):
        relative(expected).check(answering({"y": expected * np.float32(np.nan)}), timeout=1)


def test_a_class_in_a_hundred_may_be_another() -> None:
    expected = np.arange(1000)
    found = expected.copy()
    found[:10] += 1
    relative(expected).check(answering({"y": found}), timeout=1)
    found[:11] = 5000
    with pytest.raises(BackendError, match=r"1\.1% of output 'y' differ .* limit 1%"):
        relative(expected).check(answering({"y": found}), timeout=1)


def test_one_pixel_is_too_small_to_tell() -> None:
    """As versions were sealed once; a size that was chosen, or a batch of 1, is not."""
    wide = (TensorSpec("x", "float32", (-1, 3, -1, -1)),)
    pixel = SelfTest(inputs={"x": np.ones((1, 3, 1, 8))}, outputs={"y": X}, tolerance=1.0)
    assert "too small to tell: x [1, 3, 1, 8]" in too_small(pixel, wide)
    assert not too_small(relative(X), INPUTS)
    assert not too_small(SelfTest(inputs={"x": X}, outputs={"y": X}, tolerance=1.0), INPUTS)
