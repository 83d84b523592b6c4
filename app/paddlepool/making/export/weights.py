"""Reads published weights and converts them to the state of the served networks.

Nothing is unpickled. "Upstream" is the original code of U²-Net. In an ONNX file, the names of its
arrays depend on the exporter, so arrays are identified by position: the n-th convolution of the
file is the n-th that upstream runs. A file is accepted only if the inputs of every convolution also
come from the same convolutions as upstream.
"""

import json
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from numpy.typing import NDArray
from onnx import numpy_helper
from safetensors import SafetensorError
from safetensors.numpy import load_file
from tokenizers import Tokenizer
from tokenizers.implementations.bert_wordpiece import BertWordPieceTokenizer

from paddlepool.contracts.errors import ExportError
from paddlepool.models.networks.bert import BertConfig
from paddlepool.models.networks.u2net import Stage

Arrays: TypeAlias = dict[str, NDArray[np.float32]]


def read_arrays(path: Path) -> Arrays:
    """Read every array of a .npz or .safetensors file as float32, by name.

    Raises ExportError if the file cannot be read or has a value that is not a finite number.
    """
    if not path.is_file():
        raise ExportError(f"no weights file at {path}")
    try:
        if path.suffix == ".safetensors":
            raw = dict(load_file(path))
        elif path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as archive:
                raw = {name: archive[name] for name in archive.files}
        else:
            raise ExportError(f"{path.name}: weights must be .npz or .safetensors")
    except (SafetensorError, ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise ExportError(f"{path.name} cannot be read as {path.suffix[1:]}: {error}") from error
    arrays = {}
    for name, value in raw.items():
        if value.dtype.kind not in "fiu":
            raise ExportError(f"{path.name}: {name} has dtype {value.dtype}, expected numbers")
        arrays[name] = value.astype(np.float32)
        if not np.isfinite(arrays[name]).all():
            raise ExportError(f"{path.name}: {name} holds a value that is not finite")
    return arrays


BATCH_NORM_EPSILON = 1e-5  # PyTorch's default, which upstream trains with
_BATCH_NORM = ("weight", "bias", "running_mean", "running_var")


def fold_batch_norm(arrays: Arrays) -> Arrays:
    """Return the arrays with every `bn_s1` folded into its `conv_s1`; exact up to rounding.

    A prefix `module.` is removed from names, and `num_batches_tracked` is dropped. Arrays without a
    batch norm are unchanged. Raises ExportError if a batch norm is incomplete.
    """
    folded = {
        name.removeprefix("module."): value
        for name, value in arrays.items()
        if not name.endswith("num_batches_tracked")
    }
    blocks = {name.partition(".bn_s1.")[0] for name in folded if ".bn_s1." in name}
    for block in sorted(blocks):
        try:
            gain, shift, mean, variance = (
                folded.pop(f"{block}.bn_s1.{part}") for part in _BATCH_NORM
            )
            kernel = folded[f"{block}.conv_s1.weight"]
        except KeyError as error:
            raise ExportError(f"batch norm of {block} is incomplete: {error} is missing") from error
        bias = folded.get(f"{block}.conv_s1.bias", np.zeros(len(gain), np.float32))
        scale = gain.astype(np.float64) / np.sqrt(variance.astype(np.float64) + BATCH_NORM_EPSILON)
        folded[f"{block}.conv_s1.weight"] = (kernel * scale[:, None, None, None]).astype(np.float32)
        folded[f"{block}.conv_s1.bias"] = ((bias - mean) * scale + shift).astype(np.float32)
    return folded


def mask_state(arrays: Arrays) -> Arrays:
    """Return the state of `networks.u2net`, from fold_batch_norm()'s arrays with upstream's names.

    Raises ExportError if the side outputs are missing or have other shapes.
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
    """Raise ExportError if arrays are missing, unknown or of another shape than expected.

    `expected` has the shapes by name. The message begins with `what` and names the first array.
    """
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


Sources = tuple[str, ...]
_POINTWISE = ("BatchNormalization", "Cast", "Identity", "Relu", "Sigmoid")
_RESIZING = ("MaxPool", "Resize", "Upsample")


def convolution_sources(stages: tuple[Stage, ...]) -> dict[str, Sources]:
    """Return the convolutions whose outputs each convolution reads, by name.

    The keys are all convolutions in the order in which upstream runs them.
    """
    reads: dict[str, Sources] = {}

    def block(stage: Stage, entry: Sources) -> Sources:
        def run(level: str, sources: Sources) -> Sources:
            name = f"{stage.name}.rebnconv{level}.conv_s1"
            reads[name] = sources
            return (name,)

        first = run("in", entry)
        encoded = [run("1", first)]
        for level in range(2, stage.depth + 1):
            encoded.append(run(f"{level}", encoded[-1]))
        y = encoded.pop()
        for level in range(stage.depth - 1, 0, -1):
            y = run(f"{level}d", y + encoded[level - 1])
        return y + first

    encoded: list[Sources] = [()]
    for stage in stages[:6]:
        encoded.append(block(stage, encoded[-1]))
    decoded = [encoded[6]]
    for stage, skip in zip(stages[6:], encoded[5:0:-1], strict=True):
        decoded.insert(0, block(stage, decoded[0] + skip))
    for index, feature in enumerate(decoded, start=1):
        reads[f"side{index}"] = feature
    reads["outconv"] = tuple(f"side{index}" for index in range(1, 7))
    return reads


def read_u2net_onnx(path: Path, stages: tuple[Stage, ...]) -> Arrays:
    """Read the arrays of an ONNX file, and return them under upstream's names.

    Raises ExportError if the file cannot be read or its graph does not match `stages`.
    """
    try:
        graph = onnx.load(str(path), load_external_data=False).graph
        constants = _constants(graph)
    except (OSError, DecodeError, ValueError, TypeError) as error:
        raise ExportError(f"{path.name} cannot be read as ONNX: {error}") from error
    expected = convolution_sources(stages)
    nodes = [node for node in graph.node if node.op_type == "Conv"]
    if len(nodes) != len(expected):
        raise ExportError(
            f"{path.name} has {len(nodes)} convolutions, the network has {len(expected)}"
        )
    names = dict(zip((node.output[0] for node in nodes), expected, strict=True))
    producers = {output: node for node in graph.node for output in node.output}
    norms = {node.input[0]: node for node in graph.node if node.op_type == "BatchNormalization"}
    arrays: Arrays = {}
    for node, (name, sources) in zip(nodes, expected.items(), strict=True):
        actual = _sources(node.input[0], producers, names)
        if sorted(actual) != sorted(sources) or (len(actual) > 2 and actual != sources):
            raise ExportError(
                f"{path.name}: the convolution in the place of {name} reads {list(actual)}, "
                f"expected {list(sources)}; this is not the expected network"
            )
        try:
            arrays[f"{name}.weight"] = constants[node.input[1]]
            if len(node.input) > 2:
                arrays[f"{name}.bias"] = constants[node.input[2]]
            if norm := norms.get(node.output[0]):
                block = name.removesuffix(".conv_s1")
                for kind, key in zip(_BATCH_NORM, norm.input[1:5], strict=True):
                    arrays[f"{block}.bn_s1.{kind}"] = constants[key]
        except (KeyError, ValueError) as error:
            raise ExportError(f"{path.name}: the weights of {name} are not constants") from error
    return arrays


def _sources(value: str, producers: dict[str, Any], names: dict[str, str]) -> Sources:
    """Return the names of the nearest convolutions before `value`; none for the network's input.

    Raises ExportError for a kind of node that U²-Net does not have.
    """
    if value in names:
        return (names[value],)
    node = producers.get(value)
    if node is None:  # the network's input
        return ()
    if node.op_type in (*_POINTWISE, *_RESIZING):
        return _sources(node.input[0], producers, names)
    if node.op_type in ("Concat", "Add"):
        return tuple(name for part in node.input for name in _sources(part, producers, names))
    raise ExportError(f"the graph holds a {node.op_type}, which U²-Net does not have")


def _constants(graph: Any) -> dict[str, NDArray[np.float32]]:
    constants = {item.name: numpy_helper.to_array(item) for item in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].HasField("t"):
            constants[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
        elif node.op_type == "Identity" and node.input[0] in constants:
            constants[node.output[0]] = constants[node.input[0]]
    return constants


@dataclass(frozen=True, slots=True)
class BertDirectory:
    """A published BERT: `options` are fields of BertConfig, `state` the served network's arrays."""

    options: dict[str, Any]
    state: Arrays
    labels: tuple[str, ...]
    pad_id: int


def read_bert_directory(directory: Path) -> BertDirectory:
    """Read config.json and model.safetensors of a directory that Hugging Face's libraries wrote.

    Raises ExportError if they cannot be read or are not those of a plain BERT.
    """
    config = _object(directory / "config.json")
    required = {"model_type": "bert", "hidden_act": "gelu", "position_embedding_type": "absolute"}
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


def _object(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ExportError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(values, dict):
        raise ExportError(f"{path} must hold an object, received {type(values).__name__}")
    return values


def _labels(config: dict[str, Any]) -> tuple[str, ...]:
    names = config.get("id2label")
    if not names:
        return tuple(f"LABEL_{i}" for i in range(int(config.get("num_labels", 2))))
    try:
        return tuple(str(names[str(index)]) for index in range(len(names)))
    except KeyError as error:
        raise ExportError(f"id2label must number its labels from 0; {error} is missing") from error


def served_state(arrays: Arrays, config: BertConfig) -> Arrays:
    """Return the arrays of a published BERT as the state of `networks.bert`.

    PyTorch stores a linear layer as [out,in], Paddle as [in,out]. All tokens are of type 0, so the
    embedding of that type is added to the position embeddings. Raises ExportError if an array is
    missing.
    """
    state: Arrays = {}

    def take(target: str, source: str) -> None:
        """Copy the weight, transposed, and the bias of a linear layer or a normalisation."""
        # A normalisation's weight has one axis, so transposing does not change it.
        state[f"{target}.weight"] = np.ascontiguousarray(arrays[f"{source}.weight"].T)
        state[f"{target}.bias"] = arrays[f"{source}.bias"]

    embeddings = "bert.embeddings"
    try:
        state["word_embeddings.weight"] = arrays[f"{embeddings}.word_embeddings.weight"]
        state["position_embeddings.weight"] = (
            arrays[f"{embeddings}.position_embeddings.weight"]
            + arrays[f"{embeddings}.token_type_embeddings.weight"][0]
        )
        take("embeddings_norm", f"{embeddings}.LayerNorm")
        for index in range(config.num_hidden_layers):
            own, source = f"layers.{index}", f"bert.encoder.layer.{index}"
            for part in ("query", "key", "value"):
                take(f"{own}.attention.{part}", f"{source}.attention.self.{part}")
            take(f"{own}.attention.output", f"{source}.attention.output.dense")
            take(f"{own}.attention_norm", f"{source}.attention.output.LayerNorm")
            take(f"{own}.intermediate", f"{source}.intermediate.dense")
            take(f"{own}.output", f"{source}.output.dense")
            take(f"{own}.output_norm", f"{source}.output.LayerNorm")
        take("pooler", "bert.pooler.dense")
        take("classifier", "classifier")
    except KeyError as error:
        raise ExportError(f"model.safetensors has no array {error}") from None
    return state


def write_tokenizer(source: Path, target: Path) -> None:
    """Write `target/tokenizer.json` from a Hugging Face directory, without padding and truncation.

    Reads its tokenizer.json or, if it has none, its vocab.txt with the `do_lower_case` of its
    tokenizer_config.json, by default true. Raises ExportError if both are missing or a file is
    unusable.
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
    try:
        text = vocabulary.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ExportError(f"{vocabulary} cannot be read as UTF-8: {error}") from error
    # Not splitlines(): in Chinese vocabularies, one word is U+2028, and each line is an id.
    words = text.removesuffix("\n").split("\n")
    missing = [token for token in ("[UNK]", "[CLS]", "[SEP]") if token not in words]
    if missing:
        raise ExportError(f"{vocabulary} lacks the special tokens {', '.join(missing)}")
    settings = source / "tokenizer_config.json"
    lowercase = not settings.is_file() or _object(settings).get("do_lower_case", True)
    words_by_id = {word: index for index, word in enumerate(words)}
    return BertWordPieceTokenizer(words_by_id, lowercase=bool(lowercase))._tokenizer
