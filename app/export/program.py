"""A dynamic-graph network traced with named inputs and saved as a static PIR program."""

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
from app.networks.saved import PROGRAM

Store: TypeAlias = Literal["float32", "float16"]


def save_program(
    network: nn.Layer, *, inputs: Sequence[TensorSpec], directory: Path, store: Store
) -> None:
    """Writes `inference.json` and `inference.pdiparams` into `directory`; consumes `network`.

    With `store="float16"` the parameters are rounded to half precision and the program casts them
    back. Paddle Inference folds those casts when it loads the program, so a run costs the same.
    Parameters keep their structured names, by which the dynamic graph is rebuilt.
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
    """Removes each operator's label, which numbers the layers this process has ever traced.

    Nothing reads it, and without it equal networks are equal bytes.
    """
    program = json.loads(path.read_text("utf-8"))
    for operator in program["program"]["regions"][0]["blocks"][0]["ops"]:
        if operator["#"] != "p":  # parameters keep another kind of attribute list
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
    """At the start, and not layer by layer: a network may read a layer's weights itself."""
    for layer in network.sublayers(include_self=True):
        for name, parameter in layer._parameters.items():
            if name.endswith(_HALF):
                # Past Layer.__setattr__, which would register the traced value as a parameter.
                object.__setattr__(layer, name.removesuffix(_HALF), parameter.astype("float32"))
