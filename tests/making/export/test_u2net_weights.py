"""U²-Net weights are found in every form they come in, and refused when they are not U²-Net."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from safetensors.numpy import save_file

from paddlepool.contracts.errors import ExportError
from paddlepool.making.export.exporter import read_recipe
from paddlepool.making.export.weights import (
    Arrays,
    check_state,
    fold_batch_norm,
    mask_state,
    read_arrays,
    read_u2net_onnx,
)
from paddlepool.models.networks.u2net import U2NETP, Stage, U2NetMask
from tests.making.export.u2net_onnx import write_u2netp

pytestmark = pytest.mark.paddle


def random_arrays(*, batch_norm: bool, stages: tuple[Stage, ...] = U2NETP) -> Arrays:
    """Upstream names and shapes with random values."""
    random = np.random.default_rng(12)
    shapes = {name: tuple(array.shape) for name, array in U2NetMask(stages).state_dict().items()}
    del shapes["place.weight"], shapes["bias"]
    for side in range(1, 7):
        _, width, *_ = shapes.pop(f"taps{side}.weight")
        shapes |= {f"side{side}.weight": (1, width, 3, 3), f"side{side}.bias": (1,)}
    shapes |= {"outconv.weight": (1, 6, 1, 1), "outconv.bias": (1,)}
    arrays: Arrays = {}
    for name, shape in shapes.items():
        # Wider layers get smaller weights, so that what runs through many of them stays finite.
        scale = 0.1 if len(shape) == 1 else min(0.05, (shape[1] * 9) ** -0.5)
        arrays[name] = random.normal(scale=scale, size=shape).astype(np.float32)
        if batch_norm and name.endswith("conv_s1.bias"):
            for kind in ("weight", "bias", "running_mean", "running_var"):
                value = random.uniform(0.5, 1.5, shape).astype(np.float32)
                arrays[name.replace("conv_s1.bias", f"bn_s1.{kind}")] = value
    return arrays


@pytest.fixture(scope="module")
def folded() -> Arrays:
    return random_arrays(batch_norm=False)


@pytest.fixture(scope="module")
def unfolded() -> Arrays:
    return random_arrays(batch_norm=True)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
@pytest.mark.parametrize("prefix", ["", "module."], ids=["bare", "data parallel"])
def test_named_files(tmp_path: Path, unfolded: Arrays, suffix: str, prefix: str) -> None:
    path = tmp_path / f"weights{suffix}"
    named = {f"{prefix}{name}": value for name, value in unfolded.items()}
    named[f"{prefix}stage1.rebnconvin.bn_s1.num_batches_tracked"] = np.array(3, np.int64)
    if suffix == ".npz":
        np.savez(path, allow_pickle=False, **named)
    else:
        save_file(named, path)
    expected = mask_state(fold_batch_norm(unfolded))
    actual = read_recipe("u2netp", path).state
    assert expected.keys() == actual.keys()
    assert all(np.array_equal(expected[name], actual[name]) for name in expected)


@pytest.mark.parametrize("batch_norm", [False, True], ids=["folded", "unfolded"])
def test_anonymous_onnx(tmp_path: Path, folded: Arrays, unfolded: Arrays, batch_norm: bool) -> None:
    expected = unfolded if batch_norm else folded
    write_u2netp(tmp_path / "anonymous.onnx", expected)
    actual = read_u2net_onnx(tmp_path / "anonymous.onnx", U2NETP)
    assert expected.keys() == actual.keys()
    assert all(np.array_equal(expected[name], actual[name]) for name in expected)


def test_other_graphs(tmp_path: Path, folded: Arrays) -> None:
    path = tmp_path / "u2netp.onnx"
    write_u2netp(path, folded)
    model = onnx.load(str(path))
    del model.graph.initializer[7]
    onnx.save(model, str(path))
    with pytest.raises(ExportError, match="are not constants"):
        read_u2net_onnx(path, U2NETP)
    del model.graph.node[-3:]
    onnx.save(model, str(path))
    with pytest.raises(ExportError, match="118 convolutions, the network has 119"):
        read_u2net_onnx(path, U2NETP)


def test_missing_unknown_and_misshapen_arrays(folded: Arrays) -> None:
    shapes = {name: value.shape for name, value in folded.items()}
    check_state(folded, shapes, what="x")
    with pytest.raises(ExportError, match=r"1 arrays missing \(first: \['more'\]\)"):
        check_state(folded, shapes | {"more": (1,)}, what="x")
    with pytest.raises(ExportError, match=r"1 unknown \(first: \['odd'\]\)"):
        check_state(folded | {"odd": np.zeros(1, np.float32)}, shapes, what="x")
    with pytest.raises(ExportError, match=r"side1\.bias has shape \(1,\), expected \(9,\)"):
        check_state(folded, shapes | {"side1.bias": (9,)}, what="x")


def test_pickled_arrays_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "evil.npz", weight=np.array([print], dtype=object))
    with pytest.raises(ExportError, match="cannot be read as npz"):
        read_arrays(tmp_path / "evil.npz")


@pytest.mark.parametrize("name", ["x.npz", "x.safetensors", "x.pth", "absent.npz"])
def test_unreadable_files(tmp_path: Path, name: str) -> None:
    if not name.startswith("absent"):
        (tmp_path / name).write_bytes(b"garbage")
    with pytest.raises(ExportError, match=name):
        read_arrays(tmp_path / name)


def test_values_that_are_not_numbers(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", good=np.ones(2), bad=np.array([np.nan]))
    with pytest.raises(ExportError, match="bad holds a value that is not finite"):
        read_arrays(tmp_path / "x.npz")
