"""Small programs over the layers that people export: every engine is right, or says why not.

The right outputs are those of the layers themselves. Left out are programs that end a process: some
paddings and resampling modes of Paddle's own kernels.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from tests.engine.backends.sweep.run import CONVERTED, ENGINES, RUNS
from tests.ran import ran

pytestmark = pytest.mark.paddle

TOLERANCE = 5e-4
"""Of the outputs' range. Engines approximate exp and erf differently."""

DIFFERENT = "differs_"
"""Begins the names of the programs of `sweep/differences.py`."""
PARTS = 8
"""All programs together would take longer than a test may."""
SAMPLE = (
    "alone_softplus_threshold",
    "avg_pool_3_2_1_ceil_all",
    "conv2d_norm_relu",
    "divide_broadcast_first",
    "divide_constant_first",
    "encoder_True",
    "focal",
    "int64_small",
    "linear_abs_sigmoid",
    "linear_hardswish_relu6",
    "lstm",
    "lstm_lengths",
    "floor_of_multiples",
    "norm_group_nhwc_relu",
    "read_again_cos",
    "read_again_floor",
    "resize_bilinear_1.5",
    "resize_bilinear_corners",
    "resize_bilinear_like",
    "resize_bilinear_mode1",
    "resize_nearest_2",
    "resize_nearest_fixed",
    "squeeze_excite",
)
"""What engines were wrong about, and a little beside it."""


def swept(directory: Path, names: Sequence[str] = ()) -> None:
    environment = {**os.environ, "GLOG_minloglevel": "2"}
    engines = [name for name in ENGINES if find_spec("paddle2onnx") or name not in CONVERTED]
    for engine in ("dygraph", *(["converted"] if CONVERTED[0] in engines else []), *engines):
        command = (sys.executable, "-m", "tests.engine.backends.sweep.run", engine, directory)
        ran([*command, *(names if engine == "dygraph" else ())], env=environment, timeout=280)


def wrong(directory: Path) -> Iterator[str]:
    """Say for each program and engine what differs from the layers."""
    for program in sorted(directory.iterdir()):
        assert (program / "opening.json").exists(), (program / "dygraph.refused").read_text()
        if program.name.startswith(DIFFERENT):
            continue
        for engine in ENGINES:
            refused = (program / f"{engine}.refused").exists()
            if refused or not (program / f"{engine}0.npz").exists():
                continue
            for run in range(RUNS):
                expected = np.load(program / f"dygraph{run}.npz")
                actual = np.load(program / f"{engine}{run}.npz")
                if list(actual) != list(expected):
                    yield f"{program.name}, {engine}: {list(actual)} instead of {list(expected)}"
                for name in expected:
                    if reason := difference(actual[name], expected[name]):
                        yield f"{program.name}, {engine}, run {run}: {reason}"


def difference(actual: np.ndarray, expected: np.ndarray) -> str:  # type: ignore[type-arg]
    if (actual.dtype, actual.shape) != (expected.dtype, expected.shape):
        return f"{actual.dtype}{actual.shape} instead of {expected.dtype}{expected.shape}"
    if expected.dtype.kind != "f":
        return "" if np.array_equal(actual, expected) else "other numbers"
    largest = np.abs(expected, where=np.isfinite(expected), out=np.ones_like(expected)).max(
        initial=1
    )
    if np.allclose(actual, expected, rtol=0, atol=TOLERANCE * largest, equal_nan=True):
        return ""
    return f"off by {np.nanmax(np.abs(actual - expected)) / largest:.2g} of the range"


def refusals(directory: Path) -> dict[str, str]:
    return {
        f"{path.parent.name}, {path.stem}": path.read_text()
        for path in sorted(directory.glob("*/*.refused"))
    }


def refused_without_a_reason(directory: Path) -> dict[str, str]:
    """Paddle's own engines refuse nothing; the others give our reason or a sentence of theirs."""
    return {
        name: text
        for name, text in refusals(directory).items()
        if not name.endswith(("converted", *CONVERTED)) or text.startswith("the process ended")
    }


NAN = float("nan")
DIFFERENCES: dict[str, tuple[list[float], dict[str, list[float]]]] = {
    "log_softmax_low": (
        [0, -64],
        {name: [0, -100] for name in ("onednn", "onnxruntime", "openvino")},
    ),
    "log_of_sigmoid": ([-2.126928, -20], {"onnxruntime": [-2.126928, -float("inf")]}),
    "relu_of_nan": ([0, 1], {"onnxruntime": [NAN, 1]}),
    "clip_of_nan": ([NAN, 1], {"onednn": [-2, 1], "openvino": [-2, 1]}),
    "cast_beyond": ([0, 255], {"openvino": [255, 0]}),
    "ties": ([3, 5, 0], {"onnxruntime": [0, 2, 3], "openvino": [0, 2, 3]}),
    "group_norm_of_large": (
        [1, 1, 1, 1],
        {name: [0, 0, 0, 0] for name in ("onnxruntime", "openvino")},
    ),
    "window_of_padding": ([2, 1, 3, 3], {"onnxruntime": [2, 1, 2, 2]}),
}
"""The first row of the output in Paddle's own kernels, and in the engines that differ."""


@pytest.mark.slow
def test_a_sample_is_right_or_differs_as_documented(tmp_path: Path) -> None:
    """docs/engines.md lists the differences: if one changes, so does the page."""
    swept(tmp_path, [*SAMPLE, *(f"{DIFFERENT}{name}" for name in DIFFERENCES)])
    assert list(wrong(tmp_path)) == []
    assert refused_without_a_reason(tmp_path) == {}
    for name, (usual, others) in DIFFERENCES.items():
        for engine in ("dygraph", *ENGINES):
            if (actual := tmp_path / f"{DIFFERENT}{name}" / f"{engine}0.npz").exists():
                rows = np.load(actual)["0"].reshape(-1, len(usual))
                message = f"{name}, {engine}"
                np.testing.assert_allclose(rows[0], others.get(engine, usual), err_msg=message)


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(PARTS))
def test_every_program_is_right_in_every_engine(tmp_path: Path, part: int) -> None:
    swept(tmp_path, [f"{part}/{PARTS}"])
    assert len(list(tmp_path.iterdir())) > 500 / PARTS
    assert list(wrong(tmp_path)) == []
    assert refused_without_a_reason(tmp_path) == {}
