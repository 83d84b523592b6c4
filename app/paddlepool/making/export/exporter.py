"""Builds a model version from a recipe or a released file: traces, tests and publishes it."""

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import inference, nn
from paddle.static import InputSpec

from paddlepool.contracts.errors import ExportError
from paddlepool.contracts.tensors import TensorSpec
from paddlepool.making.export import publish, weights
from paddlepool.making.export.publish import Origin
from paddlepool.making.export.release import Release
from paddlepool.models.networks import PARAMS, PROGRAM, build
from paddlepool.models.networks.u2net import U2NET, U2NETP
from paddlepool.models.repository.config import MODEL_NAME
from paddlepool.models.repository.selftest import SelfTest, write_selftest

# The values in the templates of config.toml were chosen by measurements on two cores.
_ONE_SHAPE = "cache_capacity = 1          # every input has one shape"
# Every pair of batch size and bucket is a shape. In a cache for only some shapes, each shape would
# have its own packed weights, and they would be packed again whenever the shape had been evicted.
_ALL_SHAPES = "cache_capacity = 0          # all shapes are kept and share their packed weights"

_MASKS = "{ mean_difference = 0.015, agreement = 0.95 }"
_LABELS = "{ mean_difference = 0.1, agreement = 1.0 }"

BUCKETS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)

_CHINESE = {
    "angry": "愤怒",
    "happy": "快乐",
    "neutral": "平静",
    "surprise": "惊讶",
    "sad": "悲伤",
    "fear": "恐惧",
}

MASK_SIZE = 320  # the side of the square that both U²-Net variants are trained and served at


def segment_config(side: int) -> str:
    pairs = "\n" + publish.template("pairs", budget=_MASKS)
    groups = publish.template("groups", budget=_MASKS, cache=_ONE_SHAPE, alone="", pairs=pairs)
    return publish.template("segment", groups="\n" + groups, side=side)


def sentiment_config(*, labels: Sequence[str], pad_id: int, positions: int) -> str:
    buckets = [length for length in BUCKETS if length <= positions]
    warmups = (
        f"[[warmup]]\nshapes = {{ input_ids = [1, {length}], attention_mask = [1, {length}] }}\n"
        for length in buckets
    )
    alone = "\n" + publish.template("alone", cache=_ALL_SHAPES)
    groups = publish.template("groups", budget=_LABELS, cache=_ALL_SHAPES, alone=alone, pairs="")
    return publish.template(
        "sentiment",
        groups="\n" + groups,
        warmups="\n".join(warmups),
        labels=", ".join(f'"{label}"' for label in labels),
        labels_zh=", ".join(f'"{_CHINESE.get(label, label)}"' for label in labels),
        buckets=buckets,
        max_tokens=buckets[-1],
        pad_id=pad_id,
    )


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that differs between networks when a version is built.

    `network` and `options` are those of networks.build(), `state` has the network's parameters by
    name. `feeds` are the inputs of the self-test, and `config` is the text of a new model's
    config.toml.
    """

    network: str
    state: weights.Arrays
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    feeds: dict[str, NDArray[Any]]
    config: str
    weights_sha256: str
    options: Mapping[str, Any] = field(default_factory=dict)
    # Called with the version's directory, to write more files.
    write_extras: Callable[[Path], None] | None = None
    # The ONNX file whose outputs the program must reproduce.
    onnx: Path | None = None


def read_recipe(network: str, path: Path) -> Recipe:
    """Read the weights at `path` and return the recipe for `network`.

    `network` is `u2netp`, `u2net`, `bert` or `mnist`. `path` is a file; for `bert`, it is a
    directory. Raises ExportError if the weights cannot be read or converted. Only export_version()
    compares all their names and shapes with the network's.
    """
    if network in ("u2netp", "u2net"):
        return _u2net(network, path)
    if network == "bert":
        return bert_recipe(
            weights.read_bert_directory(path),
            weights_sha256=publish.sha256_of(path / "model.safetensors"),
            write_extras=lambda target: weights.write_tokenizer(path, target),
        )
    ramp = np.linspace(-1.0, 1.0, 784, dtype=np.float32)
    return Recipe(
        network="mnist",
        state=weights.read_arrays(path),
        inputs=(TensorSpec("image", "float32", (-1, 784)),),
        outputs=(TensorSpec("logits", "float32", (-1, 10)),),
        feeds={"image": np.stack([ramp, -ramp])},
        config=publish.template("mnist"),
        weights_sha256=publish.sha256_of(path),
    )


def _u2net(network: str, path: Path) -> Recipe:
    is_onnx = path.suffix == ".onnx"
    stages = U2NETP if network == "u2netp" else U2NET
    arrays = weights.read_u2net_onnx(path, stages) if is_onnx else weights.read_arrays(path)
    ramp = np.linspace(-1.0, 1.0, MASK_SIZE, dtype=np.float32)
    # A bright disc on a dark slope: the mask covers 0..1, and few distinct values compress well.
    disc = np.where(ramp[:, None] ** 2 + ramp[None, :] ** 2 < 0.3, 2.0, -1.5)
    planes = [disc, disc * 0.5 + ramp[None, :] * 0.5, disc * 0.25 - ramp[:, None] * 0.5]
    image = (np.round(np.stack(planes)[None] * 16.0) / 16.0).astype(np.float32)
    return Recipe(
        network=network,
        state=weights.mask_state(weights.fold_batch_norm(arrays)),
        inputs=(TensorSpec("input", "float32", (-1, 3, MASK_SIZE, MASK_SIZE)),),
        outputs=(TensorSpec("d0", "float32", (-1, 1, MASK_SIZE, MASK_SIZE)),),
        feeds={"input": image},
        config=segment_config(MASK_SIZE),
        weights_sha256=publish.sha256_of(path),
        onnx=path if is_onnx else None,
    )


def bert_recipe(
    bert: weights.BertDirectory,
    *,
    weights_sha256: str,
    write_extras: Callable[[Path], None] | None = None,
) -> Recipe:
    """Return the recipe for a BERT whose weights have been read."""
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
        weights_sha256=weights_sha256,
        write_extras=write_extras,
    )


TOLERANCE = 1e-3  # ten times the difference of oneDNN and native; a damaged weight causes far more
GRID = 4096.0  # golden outputs are rounded to 1/4096 to compress well; far below the tolerance


def run_program(
    directory: Path, feeds: Sequence[NDArray[Any]], *, onednn: bool
) -> list[NDArray[Any]]:
    """Run the program saved in `directory` once, on one thread, and return its outputs.

    `feeds` and outputs are in the program's order. Without `onednn`, Paddle's native kernels run.
    """
    config = inference.Config(str(directory / PROGRAM), str(directory / PARAMS))
    config.disable_gpu()
    config.disable_glog_info()
    config.set_cpu_math_library_num_threads(1)
    config.enable_mkldnn() if onednn else config.disable_mkldnn()
    inputs = [paddle.to_tensor(feed) for feed in feeds]
    return [output.numpy() for output in inference.create_predictor(config).run(inputs)]


def capture_selftest(directory: Path, recipe: Recipe) -> None:
    """Run the saved program on the recipe's `feeds` and write `selftest.npz`.

    Raises ExportError if an output is not finite, or if oneDNN and the native kernels differ by
    more than TOLERANCE: such a version would fail its own test.
    """
    feeds = list(recipe.feeds.values())
    native, fused = (run_program(directory, feeds, onednn=onednn) for onednn in (False, True))
    golden = dict(zip((spec.name for spec in recipe.outputs), native, strict=True))
    for (name, value), other in zip(golden.items(), fused, strict=True):
        if not np.isfinite(value).all():
            raise ExportError(f"output {name} of the exported program is not finite")
        drift = float(np.abs(value - other).max())
        if not drift <= TOLERANCE:
            raise ExportError(
                f"output {name}: oneDNN differs by {drift:.1e}, limit {TOLERANCE:.0e}"
            )
    rounded = {name: np.round(value * GRID) / GRID for name, value in golden.items()}
    write_selftest(directory, SelfTest(inputs=recipe.feeds, outputs=rounded, tolerance=TOLERANCE))


LIMIT = 1e-4


def check_against_onnx(directory: Path, model: Path, feed: NDArray[np.float32]) -> None:
    """Raise ExportError if the program's output differs from that of an ONNX file by over LIMIT.

    `directory` has the program, `model` is the ONNX file, `feed` their only input. Also raises
    ExportError if ONNX Runtime cannot run the file. Does nothing if ONNX Runtime is not installed.
    """
    if find_spec("onnxruntime") is None:
        return
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(
            str(model), options, providers=["CPUExecutionProvider"]
        )
        expected = session.run(None, {session.get_inputs()[0].name: feed})[0]
    except Exception as error:  # its errors have no common base class
        raise ExportError(f"ONNX Runtime cannot run {model.name}: {error}") from error
    (output,) = run_program(directory, [feed], onednn=True)
    difference = float(np.abs(output - np.asarray(expected)).max())
    if not difference <= LIMIT:
        raise ExportError(
            f"{model.name}: ONNX Runtime's output differs by {difference:.1e}, limit {LIMIT:.0e}"
        )


Store: TypeAlias = Literal["float32", "float16"]


def export_version(
    recipe: Recipe,
    *,
    repository: Path,
    name: str,
    origin: Origin,
    store: Store = "float32",
    version: int | None = None,
) -> Path:
    """Build and publish a version of the model `name`, and return its directory.

    `store` is explained at save_program(). If `version` is None, the new version gets the next
    number. A model without a config.toml gets that of its recipe. Raises ExportError for a wrong
    name or an existing version, for weights that do not fit the network or `store`, and for a
    program that fails its tests. A failure leaves no incomplete version that a server could find.
    """
    if not MODEL_NAME.fullmatch(name):
        raise ExportError(f"model name {name!r} must match {MODEL_NAME.pattern}")
    model = repository / name
    network = build(recipe.network, recipe.options, static=True)
    expected = {key: tuple(value.shape) for key, value in network.state_dict().items()}
    weights.check_state(recipe.state, expected, what=f"weights for {recipe.network}")
    network.set_state_dict({key: paddle.to_tensor(value) for key, value in recipe.state.items()})
    number = version if version is not None else publish.next_version(model)
    with publish.staged_version(model, number) as directory:
        save_program(network, inputs=recipe.inputs, directory=directory, store=store)
        if recipe.onnx:
            check_against_onnx(directory, recipe.onnx, *recipe.feeds.values())
        if recipe.write_extras:
            recipe.write_extras(directory)
        capture_selftest(directory, recipe)
        publish.write_manifest(
            directory,
            program=PROGRAM,
            params=PARAMS,
            network={"name": recipe.network, "options": dict(recipe.options)},
            inputs=recipe.inputs,
            outputs=recipe.outputs,
            origin=origin,
            weights_sha256=recipe.weights_sha256,
        )
        config = model / "config.toml"
        if not config.exists():
            config.write_text(recipe.config, "utf-8")
    return model / str(number)


def import_u2net(
    model: str, file: Path, *, repository: Path, release: Release, origin: Origin | None = None
) -> Path:
    """Publish the weights in `file` as the next version of `model`; return its directory.

    If a version already has these weights, publishes nothing and returns that version's directory.
    If `file` is the one of `release`, the version has the release's origin, else it has `origin`.
    Raises ExportError if the file is missing, or is not that of the release and has no `origin`,
    and as read_recipe() and export_version() do.
    """
    if not file.is_file():
        raise ExportError(f"no file at {file}")
    digest = publish.sha256_of(file)
    if digest == release.sha256:
        origin = Origin("official release", source=release.source, licence=release.licence)
    elif origin is None:
        raise ExportError(
            f"{file.name} has sha256 {digest}, the official release has {release.sha256}; "
            "use --origin to import other weights"
        )
    if existing := publish.published_version(repository / model, digest):
        return existing
    # Human segmentation is the full network, trained on other pictures.
    recipe = read_recipe("u2netp" if model == "u2netp" else "u2net", file)
    return export_version(recipe, repository=repository, name=model, origin=origin)


def save_program(
    network: nn.Layer, *, inputs: Sequence[TensorSpec], directory: Path, store: Store
) -> None:
    """Write `inference.json` and `inference.pdiparams` into `directory`; changes `network`.

    With `store="float16"`, the parameters are rounded to half precision, and the program casts them
    to float32. Paddle Inference applies these casts once, when it loads the program. Parameters get
    their names in the network, from which the dynamic graph can be rebuilt. Raises ExportError if a
    parameter does not fit float16.
    """
    network.eval()
    for path, layer in network.named_sublayers(include_self=True):
        for name, parameter in list(layer._parameters.items()):
            if parameter is None:
                continue
            if store == "float16":
                parameter = _halve(layer, name)
            parameter.name = f"{path}.{name}" if path else name
    if store == "float16":
        network.register_forward_pre_hook(_widen_all)
    specs = [InputSpec(spec.shape, spec.dtype, spec.name) for spec in inputs]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Paddle warns about its own deprecated calls
        static = paddle.jit.to_static(network, input_spec=specs, full_graph=True)
        paddle.jit.save(static, str(directory / PROGRAM.removesuffix(".json")))
    _drop_labels(directory / PROGRAM)


def _drop_labels(path: Path) -> None:
    """Remove each operator's label, a serial number, so that equal networks give equal bytes."""
    program = json.loads(path.read_text("utf-8"))
    for operator in program["program"]["regions"][0]["blocks"][0]["ops"]:
        if operator["#"] != "p":  # parameters have another kind of attribute list
            operator["A"] = [entry for entry in operator["A"] if entry["N"] != "struct_name"]
    path.write_text(json.dumps(program, separators=(",", ":"), ensure_ascii=False), "utf-8")


_HALF = "_half"


def _halve(layer: nn.Layer, name: str) -> Any:
    full = layer._parameters.pop(name)
    half = layer.create_parameter(full.shape, dtype="float16")
    half.set_value(full.astype("float16"))
    if not bool(paddle.isfinite(half).all()):
        raise ExportError(f"{name} does not fit float16 (limit 65504); use --store float32")
    layer.add_parameter(name + _HALF, half)
    return half


def _widen_all(network: nn.Layer, inputs: Any) -> None:  # noqa: ARG001 - Paddle passes both
    """Cast all half-precision parameters of a network to float32 before its first layer runs.

    They are cast at once, because a layer may read the weights of another one.
    """
    for layer in network.sublayers(include_self=True):
        for name, parameter in layer._parameters.items():
            if name.endswith(_HALF):
                # Bypass Layer.__setattr__, which would register the traced value as a parameter.
                object.__setattr__(layer, name.removesuffix(_HALF), parameter.astype("float32"))
