"""A BERT of bert-base's shape with random weights, which do not affect latency."""

import hashlib
from dataclasses import asdict
from pathlib import Path

import paddle

from paddlepool.making.export.exporter import bert_recipe, export_version
from paddlepool.making.export.publish import Origin
from paddlepool.making.export.weights import BertDirectory
from paddlepool.making.programs.derive import add_program, derive_int8, missing_packages
from paddlepool.models.networks import build
from paddlepool.models.networks.bert import BertConfig
from paddlepool.models.repository.layout import ModelRepository

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
    """Publish the random BERT as the model's next version.

    It takes 300 MB on disk: parameters are stored as float16 and computed in float32. With the
    package `paddle2onnx`, it also has an int8 program.
    """
    options = asdict(SHAPE)
    paddle.seed(SEED)
    state = {name: tensor.numpy() for name, tensor in build("bert", options).state_dict().items()}
    digest = hashlib.sha256(b"".join(value.tobytes() for value in state.values())).hexdigest()
    labels = tuple(f"label {index}" for index in range(SHAPE.num_labels))
    recipe = bert_recipe(BertDirectory(options, state, labels, pad_id=0), weights_sha256=digest)
    origin = Origin("random", source=f"drawn with seed {SEED}", licence="none", preview=True)
    directory = export_version(
        recipe, repository=repository, name=NAME, origin=origin, store="float16"
    )
    if not missing_packages():
        files = ModelRepository(repository).read(NAME, int(directory.name))
        if (derived := derive_int8(files)) is not None:
            add_program(directory, derived)
