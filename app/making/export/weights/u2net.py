"""Converts upstream U²-Net weights, with or without batch norm, to the served network's state."""

import re
from collections.abc import Mapping

import numpy as np

from app.contracts.errors import ExportError
from app.making.export.weights.arrays import Arrays

BATCH_NORM_EPSILON = 1e-5  # PyTorch's default, which upstream trains with
_BATCH_NORM = re.compile(r"(.+)\.bn_s1\.(weight|bias|running_mean|running_var)")


def fold_batch_norm(arrays: Arrays) -> Arrays:
    """Fold every `bn_s1` into its `conv_s1`; exact up to rounding.

    Names may have a `module.` prefix; `num_batches_tracked` counters are ignored. Weights without
    batch norm are returned unchanged. Raises ExportError if a batch norm is incomplete.
    """
    plain = {
        name.removeprefix("module."): value
        for name, value in arrays.items()
        if not name.endswith("num_batches_tracked")
    }
    folded = {name: value for name, value in plain.items() if not _BATCH_NORM.fullmatch(name)}
    blocks = {match[1] for name in plain if (match := _BATCH_NORM.fullmatch(name))}
    for block in sorted(blocks):
        try:
            gain, shift, mean, variance = (
                plain[f"{block}.bn_s1.{part}"]
                for part in ("weight", "bias", "running_mean", "running_var")
            )
            kernel = plain[f"{block}.conv_s1.weight"]
        except KeyError as error:
            raise ExportError(f"batch norm of {block} is incomplete: {error} is missing") from error
        bias = plain.get(f"{block}.conv_s1.bias", np.zeros(len(gain), np.float32))
        scale = gain.astype(np.float64) / np.sqrt(variance.astype(np.float64) + BATCH_NORM_EPSILON)
        folded[f"{block}.conv_s1.weight"] = (kernel * scale[:, None, None, None]).astype(np.float32)
        folded[f"{block}.conv_s1.bias"] = ((bias - mean) * scale + shift).astype(np.float32)
    return folded


def mask_state(arrays: Arrays) -> Arrays:
    """Rewrite folded upstream arrays for `app.models.networks.u2net`; exact up to rounding.

    Raises ExportError if a side convolution or `outconv` is missing.
    """
    state = {
        name: value for name, value in arrays.items() if not name.startswith(("side", "outconv"))
    }
    try:
        mix, bias = arrays["outconv.weight"].reshape(-1), arrays["outconv.bias"].copy()
        for index in range(1, 7):
            share = mix[index - 1]
            kernel = arrays[f"side{index}.weight"]
            taps = kernel[0].reshape(kernel.shape[1], 9).T[:, :, None, None]
            state[f"taps{index}.weight"] = np.ascontiguousarray(taps * share)
            bias += arrays[f"side{index}.bias"] * share
    except (KeyError, ValueError, IndexError) as error:
        raise ExportError(f"the side outputs do not look like U²-Net's: {error}") from error
    state["place.weight"] = np.eye(9, dtype=np.float32).reshape(1, 9, 3, 3)
    state["bias"] = bias
    return state


def check_state(arrays: Arrays, expected: Mapping[str, tuple[int, ...]], *, what: str) -> None:
    """Raise ExportError naming the first missing, unknown or wrongly shaped array."""
    missing = sorted(expected.keys() - arrays.keys())
    unknown = sorted(arrays.keys() - expected.keys())
    if missing or unknown:
        raise ExportError(
            f"{what}: {len(missing)} arrays missing (first: {missing[:1]}), "
            f"{len(unknown)} unknown (first: {unknown[:1]}); expected {len(expected)}"
        )
    for name, shape in expected.items():
        if arrays[name].shape != shape:
            raise ExportError(f"{what}: {name} has shape {arrays[name].shape}, expected {shape}")
