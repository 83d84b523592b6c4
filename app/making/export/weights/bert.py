"""Converts a Hugging Face BERT directory to the served network's options, state and tokenizer."""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from tokenizers.implementations.bert_wordpiece import BertWordPieceTokenizer

from app.contracts.errors import ExportError
from app.making.export.weights.arrays import Arrays, read_arrays
from app.models.networks.bert import BertConfig


@dataclass(frozen=True, slots=True)
class BertDirectory:
    """A directory's network options and state, and its labels in output order."""

    options: dict[str, Any]
    state: Arrays
    labels: tuple[str, ...]
    pad_id: int


def read_bert_directory(directory: Path) -> BertDirectory:
    """Read config.json and model.safetensors. Raises ExportError for anything but plain BERT."""
    config = read_config(directory)
    required = {
        "model_type": "bert",
        "hidden_act": "gelu",
        "position_embedding_type": "absolute",
    }
    for key, value in required.items():
        if config.get(key, value) != value:
            raise ExportError(f"{directory.name}: {key} is {config[key]!r}, supported: {value!r}")
    labels = _labels(config)
    names = [field.name for field in fields(BertConfig) if field.name in config]
    try:
        shape = BertConfig(**{name: config[name] for name in names} | {"num_labels": len(labels)})
    except TypeError as error:
        raise ExportError(f"{directory.name}/config.json is incomplete: {error}") from error
    if shape.hidden_size % shape.num_attention_heads:
        raise ExportError(
            f"hidden_size {shape.hidden_size} is not divisible by {shape.num_attention_heads} heads"
        )
    arrays = read_arrays(directory / "model.safetensors")
    return BertDirectory(
        options=asdict(shape),
        state=served_state(arrays, shape),
        labels=labels,
        pad_id=int(config.get("pad_token_id", 0)),
    )


def read_config(directory: Path) -> dict[str, Any]:
    path = directory / "config.json"
    try:
        config = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ExportError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(config, dict):
        raise ExportError(f"{path} must hold an object, received {type(config).__name__}")
    return config


def _labels(config: dict[str, Any]) -> tuple[str, ...]:
    names = config.get("id2label")
    if not names:
        return tuple(f"LABEL_{i}" for i in range(int(config.get("num_labels", 2))))
    try:
        return tuple(str(names[str(index)]) for index in range(len(names)))
    except KeyError as error:
        raise ExportError(f"id2label must number its labels from 0; {error} is missing") from error


def served_state(arrays: Arrays, config: BertConfig) -> Arrays:
    """Rewrite published BERT arrays for `app.models.networks.bert`; exact up to float32 rounding.

    PyTorch stores a linear layer as [out,in], Paddle as [in,out]. Every position has token type 0.
    Raises ExportError for a missing array.
    """

    def take(name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
        try:
            return arrays[name]
        except KeyError:
            raise ExportError(f"model.safetensors has no array {name!r}") from None

    state: Arrays = {}

    def linear(target: str, source: str) -> None:
        state[f"{target}.weight"] = np.ascontiguousarray(take(f"{source}.weight").T)
        state[f"{target}.bias"] = take(f"{source}.bias")

    def norm(target: str, source: str) -> None:
        state[f"{target}.weight"] = take(f"{source}.weight")
        state[f"{target}.bias"] = take(f"{source}.bias")

    embeddings = "bert.embeddings"
    state["word_embeddings.weight"] = take(f"{embeddings}.word_embeddings.weight")
    state["position_embeddings.weight"] = (
        take(f"{embeddings}.position_embeddings.weight")
        + take(f"{embeddings}.token_type_embeddings.weight")[0]
    )
    norm("embeddings_norm", f"{embeddings}.LayerNorm")
    for index in range(config.num_hidden_layers):
        ours, theirs = f"layers.{index}", f"bert.encoder.layer.{index}"
        for part in ("query", "key", "value"):
            linear(f"{ours}.attention.{part}", f"{theirs}.attention.self.{part}")
        linear(f"{ours}.attention.output", f"{theirs}.attention.output.dense")
        norm(f"{ours}.attention_norm", f"{theirs}.attention.output.LayerNorm")
        linear(f"{ours}.intermediate", f"{theirs}.intermediate.dense")
        linear(f"{ours}.output", f"{theirs}.output.dense")
        norm(f"{ours}.output_norm", f"{theirs}.output.LayerNorm")
    linear("pooler", "bert.pooler.dense")
    linear("classifier", "classifier")
    return state


def write_tokenizer(source: Path, target: Path) -> None:
    """Write `target/tokenizer.json` from a Hugging Face directory.

    Padding and truncation stored in the file are removed: the pipeline buckets lengths itself.
    Raises ExportError if neither tokenizer.json nor vocab.txt exists, or if it cannot be read.
    """
    tokenizer = _read(source)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.save(str(target / "tokenizer.json"), pretty=False)


def _read(source: Path) -> Tokenizer:
    path = source / "tokenizer.json"
    if path.is_file():
        try:
            return Tokenizer.from_file(str(path))
        except Exception as error:  # the Rust binding raises bare Exception
            raise ExportError(f"{path} is not a tokenizer: {error}") from error
    vocabulary = source / "vocab.txt"
    if not vocabulary.is_file():
        raise ExportError(f"{source} has neither tokenizer.json nor vocab.txt")
    words = vocabulary.read_text("utf-8").splitlines()
    missing = [token for token in ("[UNK]", "[CLS]", "[SEP]") if token not in words]
    if missing:
        raise ExportError(f"{vocabulary} lacks the special tokens {', '.join(missing)}")
    lowercase = _settings(source).get("do_lower_case", True)
    words_by_id = {word: index for index, word in enumerate(words)}
    return BertWordPieceTokenizer(words_by_id, lowercase=bool(lowercase))._tokenizer


def _settings(source: Path) -> dict[str, Any]:
    path = source / "tokenizer_config.json"
    if not path.is_file():
        return {}
    try:
        settings = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ExportError(f"{path} is not JSON: {error}") from error
    return settings if isinstance(settings, dict) else {}
