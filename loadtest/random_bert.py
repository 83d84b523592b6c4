"""A BERT of bert-base's shape with random weights, which do not affect latency."""

import hashlib
from dataclasses import asdict
from pathlib import Path

import numpy as np
import paddle

from app.contracts.tensors import TensorSpec
from app.making.export.config_text import sentiment_config
from app.making.export.exporter import Recipe, export_version
from app.making.export.publish import Origin
from app.making.programs.derive import add_program, derive_int8, missing_packages
from app.models.networks import build
from app.models.networks.bert import BertConfig
from app.models.repository.layout import ModelRepository

NAME = "bert-base-random"
SEED = 20
SHAPE = BertConfig(
    vocab_size=21128,
    hidden_size=768,
    num_hidden_layers=12,
    num_attention_heads=12,
    intermediate_size=3072,
    max_position_embeddings=512,
    num_labels=6,
)


def export_random_bert(repository: Path) -> None:
    """Publish it as the model's next version.

    It takes 300 MB on disk: parameters are stored as float16 and computed in float32. With the
    package `paddle2onnx`, it also has an int8 program.
    """
    options = asdict(SHAPE)
    paddle.seed(SEED)
    state = {name: each.numpy() for name, each in build("bert", options).state_dict().items()}
    digest = hashlib.sha256(b"".join(value.tobytes() for value in state.values())).hexdigest()
    ids = np.random.default_rng(SEED).integers(0, SHAPE.vocab_size, (2, 16)).astype(np.int64)
    recipe = Recipe(
        network="bert",
        options=options,
        state=state,
        inputs=tuple(
            TensorSpec(each, "int64", (-1, -1)) for each in ("input_ids", "attention_mask")
        ),
        outputs=(TensorSpec("logits", "float32", (-1, SHAPE.num_labels)),),
        feeds={"input_ids": ids, "attention_mask": np.ones((2, 16), np.int64)},
        config=sentiment_config(
            labels=[f"label {index}" for index in range(SHAPE.num_labels)],
            pad_id=0,
            positions=SHAPE.max_position_embeddings,
        ),
        weights_sha256=digest,
    )
    origin = Origin("random", source=f"drawn with seed {SEED}", licence="none", preview=True)
    directory = export_version(
        recipe, repository=repository, name=NAME, origin=origin, store="float16"
    )
    if not missing_packages():
        files = ModelRepository(repository).read(NAME, int(directory.name))
        if (derived := derive_int8(files)) is not None:
            add_program(directory, derived)
