"""Reads all that is needed to publish a known network from a weights file or directory."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.contracts.tensors import TensorSpec
from app.making.export.config_text import mnist_config, segment_config, sentiment_config
from app.making.export.selftest import check_against_onnx
from app.making.export.weights.arrays import Arrays, read_arrays
from app.making.export.weights.bert import read_bert_directory, write_tokenizer
from app.making.export.weights.onnx import read_u2net_onnx
from app.making.export.weights.release import sha256_of
from app.making.export.weights.u2net import fold_batch_norm, mask_state
from app.models.networks.u2net import U2NET, U2NETP

MASK_SIZE = 320  # the side of the square that both U²-Net variants are trained and served at


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that differs between networks when a version is built."""

    network: str
    options: Mapping[str, Any]
    state: Arrays
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    feeds: dict[str, NDArray[Any]]
    config: str
    weights_sha256: str
    # Called with the version's directory: to write more files, and to check the result.
    write_extras: Callable[[Path], None] | None = None
    check: Callable[[Path], None] | None = None


def read_recipe(network: str, weights: Path) -> Recipe:
    """Return the recipe for `network` with the weights at `weights`. Raises ExportError."""
    if network in ("u2netp", "u2net"):
        return _u2net(network, weights)
    if network == "bert":
        return _bert(weights)
    return _mnist(weights)


def _u2net(network: str, weights: Path) -> Recipe:
    is_onnx = weights.suffix == ".onnx"
    if is_onnx:
        arrays = read_u2net_onnx(weights, U2NETP if network == "u2netp" else U2NET)
    else:
        arrays = read_arrays(weights)
    side = MASK_SIZE
    ramp = np.linspace(-1.0, 1.0, side, dtype=np.float32)
    # A bright disc on a dark slope: the mask covers 0..1, and few distinct values compress well.
    disc = np.where(ramp[:, None] ** 2 + ramp[None, :] ** 2 < 0.3, 2.0, -1.5)
    planes = [disc, disc * 0.5 + ramp[None, :] * 0.5, disc * 0.25 - ramp[:, None] * 0.5]
    image = (np.round(np.stack(planes)[None] * 16.0) / 16.0).astype(np.float32)
    return Recipe(
        network=network,
        options={},
        state=mask_state(fold_batch_norm(arrays)),
        inputs=(TensorSpec("input", "float32", (-1, 3, side, side)),),
        outputs=(TensorSpec("d0", "float32", (-1, 1, side, side)),),
        feeds={"input": image},
        config=segment_config(side),
        weights_sha256=sha256_of(weights),
        check=(lambda target: check_against_onnx(target, weights, image)) if is_onnx else None,
    )


def _bert(directory: Path) -> Recipe:
    bert = read_bert_directory(directory)
    random = np.random.default_rng(20)
    ids = random.integers(0, bert.options["vocab_size"], (2, 16))
    mask = np.ones((2, 16), np.int64)
    mask[1, 9:] = 0
    ids[1, 9:] = bert.pad_id
    return Recipe(
        network="bert",
        options=bert.options,
        state=bert.state,
        inputs=tuple(
            TensorSpec(name, "int64", (-1, -1)) for name in ("input_ids", "attention_mask")
        ),
        outputs=(TensorSpec("logits", "float32", (-1, len(bert.labels))),),
        feeds={"input_ids": ids.astype(np.int64), "attention_mask": mask},
        config=sentiment_config(
            labels=bert.labels,
            pad_id=bert.pad_id,
            positions=bert.options["max_position_embeddings"],
        ),
        weights_sha256=sha256_of(directory / "model.safetensors"),
        write_extras=lambda target: write_tokenizer(directory, target),
    )


def _mnist(weights: Path) -> Recipe:
    ramp = np.linspace(-1.0, 1.0, 784, dtype=np.float32)
    return Recipe(
        network="mnist",
        options={},
        state=read_arrays(weights),
        inputs=(TensorSpec("image", "float32", (-1, 784)),),
        outputs=(TensorSpec("logits", "float32", (-1, 10)),),
        feeds={"image": np.stack([ramp, -ramp])},
        config=mnist_config(),
        weights_sha256=sha256_of(weights),
    )
