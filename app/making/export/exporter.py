"""Builds a model version from a recipe or a released file: traces, tests and publishes it."""

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import paddle
from paddle import nn
from paddle.static import InputSpec

from app.contracts.errors import ExportError
from app.contracts.tensors import TensorSpec
from app.making.export.publish import (
    ORIGINS,
    Origin,
    next_version,
    published_version,
    staged_version,
    write_manifest,
)
from app.making.export.recipe import Recipe, read_recipe
from app.making.export.selftest import capture_selftest
from app.making.export.weights.release import Release, sha256_of
from app.making.export.weights.u2net import check_state
from app.models.networks import build
from app.models.networks.saved import PARAMS, PROGRAM
from app.models.repository.config import MODEL_NAME

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
    """Build and publish a version (the next one unless given) and return its directory.

    A model without a config.toml gets the measured default for its network. Raises ExportError; no
    failure leaves a half-built version where the server looks.
    """
    if not MODEL_NAME.fullmatch(name):
        raise ExportError(f"model name {name!r} must match {MODEL_NAME.pattern}")
    if origin.origin not in ORIGINS:
        raise ExportError(f"origin {origin.origin!r} must be one of {', '.join(ORIGINS)}")
    model = repository / name
    network = build(recipe.network, recipe.options, static=True)
    expected = {key: tuple(value.shape) for key, value in network.state_dict().items()}
    check_state(recipe.state, expected, what=f"weights for {recipe.network}")
    network.set_state_dict({key: paddle.to_tensor(value) for key, value in recipe.state.items()})
    number = version if version is not None else next_version(model)
    with staged_version(model, number) as directory:
        save_program(network, inputs=recipe.inputs, directory=directory, store=store)
        if recipe.check:
            recipe.check(directory)
        if recipe.write_extras:
            recipe.write_extras(directory)
        capture_selftest(
            directory, inputs=recipe.inputs, outputs=recipe.outputs, feeds=recipe.feeds
        )
        write_manifest(
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

    `model` is u2netp, u2net or u2net_human_seg. If a version already has these weights, it is
    returned instead. Without `origin` the file must be the official release; raises ExportError
    otherwise.
    """
    if not file.is_file():
        raise ExportError(f"no file at {file}")
    digest = sha256_of(file)
    if digest == release.sha256:
        origin = Origin("official release", source=release.source, licence=release.licence)
    elif origin is None:
        raise ExportError(
            f"{file.name} has sha256 {digest}, the official release has {release.sha256}; "
            "say --origin to import other weights"
        )
    if existing := published_version(repository / model, digest):
        return existing
    # Human segmentation is the full network, trained on other pictures.
    recipe = read_recipe("u2netp" if model == "u2netp" else "u2net", file)
    return export_version(recipe, repository=repository, name=model, origin=origin)


def save_program(
    network: nn.Layer, *, inputs: Sequence[TensorSpec], directory: Path, store: Store
) -> None:
    """Write `inference.json` and `inference.pdiparams` into `directory`; consumes `network`.

    With `store="float16"` the parameters are rounded to half precision and the program casts them
    back. Paddle Inference folds those casts when it loads the program, so a run costs the same.
    Parameters keep their structured names, from which the dynamic graph is rebuilt.
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
    """Remove each operator's label, a running number over all layers traced by this process.

    Nothing reads it; without it, equal networks give equal bytes.
    """
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
    """Cast all half-precision parameters to float32 before the first layer runs.

    Casting layer by layer would be too late: a network may read a layer's weights itself.
    """
    for layer in network.sublayers(include_self=True):
        for name, parameter in layer._parameters.items():
            if name.endswith(_HALF):
                # Bypass Layer.__setattr__, which would register the traced value as a parameter.
                object.__setattr__(layer, name.removesuffix(_HALF), parameter.astype("float32"))
