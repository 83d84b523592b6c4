"""A BERT of bert-base's shape with random weights: latency does not depend on what they mean."""

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.contracts.tensors import TensorSpec
from app.export.config_text import sentiment_config
from app.export.exporter import export_version
from app.export.publish import Origin
from app.export.recipe import Recipe
from app.export.weights.arrays import Arrays
from app.networks import build
from app.networks.bert import BertConfig
from app.programs.derive import add_program, derive_int8, missing_packages
from app.repository.layout import ModelRepository

NAME = "bert-base-random"
SEED = 20
BERT_BASE_CHINESE = BertConfig(
    vocab_size=21128,
    hidden_size=768,
    num_hidden_layers=12,
    num_attention_heads=12,
    intermediate_size=3072,
    max_position_embeddings=512,
    num_labels=6,
)


def export_random_bert(
    repository: Path, shape: BertConfig = BERT_BASE_CHINESE, *, name: str = NAME
) -> Path:
    """Publishes it as the model's next version and returns the version's directory.

    300 MB on disk for the default shape: parameters are kept as float16, computed in float32, and
    an int8 program beside them where the extra `onnx` is installed.
    """
    options = asdict(shape)
    state = _random_state(options)
    digest = hashlib.sha256(b"".join(value.tobytes() for value in state.values())).hexdigest()
    ids = np.random.default_rng(SEED).integers(0, shape.vocab_size, (2, 16)).astype(np.int64)
    recipe = Recipe(
        network="bert",
        options=options,
        state=state,
        inputs=tuple(
            TensorSpec(each, "int64", (-1, -1)) for each in ("input_ids", "attention_mask")
        ),
        outputs=(TensorSpec("logits", "float32", (-1, shape.num_labels)),),
        feeds={"input_ids": ids, "attention_mask": np.ones((2, 16), np.int64)},
        config=sentiment_config(
            labels=[f"label {index}" for index in range(shape.num_labels)],
            pad_id=0,
            positions=shape.max_position_embeddings,
        ),
        weights_sha256=digest,
    )
    origin = Origin("random", source=f"drawn with seed {SEED}", licence="none", preview=True)
    directory = export_version(
        recipe, repository=repository, name=name, origin=origin, store="float16"
    )
    if not missing_packages():
        files = ModelRepository(repository).read(name, int(directory.name))
        if (derived := derive_int8(files)) is not None:
            add_program(directory, derived)
    return directory


def _random_state(options: dict[str, Any]) -> Arrays:
    """As BERT is initialised: normal with deviation 0.02, layer norms and biases neutral."""
    random = np.random.default_rng(SEED)
    state: Arrays = {}
    for name, parameter in build("bert", options).state_dict().items():
        shape = tuple(parameter.shape)
        value: NDArray[np.float32] = 0.02 * random.standard_normal(shape, np.float32)
        if name.endswith("norm.weight"):
            value = np.ones(shape, np.float32)
        elif name.endswith("bias"):
            value = np.zeros(shape, np.float32)
        state[name] = value.astype(np.float32)
    return state
