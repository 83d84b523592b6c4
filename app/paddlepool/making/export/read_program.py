"""Reads the inputs and outputs of a saved program with Paddle, in a child process."""

import json
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from paddlepool.contracts.errors import ExportError
from paddlepool.contracts.sentences import sentence
from paddlepool.contracts.tensors import TensorSpec
from paddlepool.engine.process.child import Child, ChildDied
from paddlepool.engine.process.environment import Limits

OPEN_SECONDS = 300.0
ADVICE = {
    "Unsupported model IR version": "save the model with a lower one: model.ir_version = 10",
    "Opset ": "export the model for a lower opset, or convert it with onnx.version_converter",
    "Type of attribute: scale is not right": (
        "a newer Paddle saved the program: give interpolate() size= in place of scale_factor=, or "
        "save the model with Paddle 3.2"
    ),
    "out_of_range.403] key 'D' not found": (
        "a constant of the program is not a number (NaN), which Paddle saves and cannot load: "
        "compute it from an input, or leave it out"
    ),
    "More than one shadow output": (
        "the program returns an input unchanged or writes into it: return a copy (paddle.assign)"
    ),
}
"""Advice on errors of Paddle and ONNX Runtime, by a part of the error's message."""


def with_advice(message: str) -> str:
    """Return an error's message, followed by the advice that ADVICE has on it, if any."""
    advice = next((text for known, text in ADVICE.items() if known in message), "")
    return f"{message}; {advice}" if advice else message


def read_specs(
    directory: Path, program: str, params: str | None
) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Return the inputs and outputs that `program` (.json or .pdmodel) declares.

    `params` is the .pdiparams of the same name, if any. A child process loads the program, because
    a program that Paddle cannot load may end the process. Raises ExportError if Paddle cannot load
    it, if its parameters are missing, or if an input is a LoD tensor.
    """
    legacy = program.endswith(".pdmodel")
    environment = {
        "GLOG_minloglevel": "2",
        "PYTHONWARNINGS": "ignore",
        # Paddle finds a .pdmodel only with the intermediate representation of Paddle 2.
        "FLAGS_enable_pir_api": "0" if legacy else "1",
    }
    opening = {"directory": str(directory), "program": program, "params": params}
    try:
        child = Child(
            "paddlepool.making.export.read_program:describe",
            opening,
            limits=Limits(environment=environment),
            start_timeout=OPEN_SECONDS,
        )
    except ChildDied as error:
        raise ExportError(f"{program}: the process that loaded it ended ({error})") from error
    with closing(child):
        inputs, outputs = (
            tuple(TensorSpec(name, dtype, tuple(shape)) for name, dtype, shape in child.ready[kind])
            for kind in ("inputs", "outputs")
        )
    return inputs, outputs


def describe(opening: Mapping[str, Any]) -> tuple[Mapping[str, Any], Callable[..., Any]]:
    """Load the program and describe its inputs and outputs, in the child process of read_specs().

    Returns the descriptions and a handler that does nothing. Outputs are named output_0 and so on:
    their own names are those of temporary variables. Raises ExportError as read_specs() does.
    """
    import paddle

    from paddlepool.models.networks import load_program

    paddle.disable_signal_handler()
    path = Path(opening["directory"]) / opening["program"]
    if path.suffix == ".pdmodel":
        paddle.enable_static()
    try:
        if opening["params"] is None and _has_parameters(path):
            # Paddle would run it anyway, with arbitrary memory contents as parameters.
            raise ExportError(
                f"{path.name} has parameters, and {path.with_suffix('.pdiparams').name} is missing"
            )
        if path.suffix == ".pdmodel":
            # load_program() would also rebuild gradients, whose outputs inference programs lack.
            program, names, outputs = paddle.static.load_inference_model(
                str(path.with_suffix("")), paddle.static.Executor(paddle.CPUPlace())
            )
            inputs = [program.global_block().var(name) for name in names]
        else:
            layer = load_program(path.with_suffix(""))
            inputs, outputs = layer._input_spec(), layer._output_spec()
    except ExportError:
        raise
    except Exception as error:
        message = f"Paddle cannot load {path.stem}: {sentence(str(error))}"
        raise ExportError(with_advice(message)) from error
    if uneven := [tensor.name for tensor in inputs if getattr(tensor, "lod_level", 0)]:
        raise ExportError(
            f"input {uneven[0]} is a LoD tensor, whose rows differ in length, and no request can "
            "carry one: export the model again with padded inputs and their lengths"
        )
    described = {
        "inputs": [_describe(tensor, tensor.name) for tensor in inputs],
        "outputs": [_describe(tensor, f"output_{index}") for index, tensor in enumerate(outputs)],
    }
    return described, lambda *_: ({}, {})


def _has_parameters(path: Path) -> bool:
    import paddle

    if path.suffix == ".pdmodel":
        program = paddle.static.deserialize_program(path.read_bytes())
        own = [variable.name for variable in program.list_vars() if variable.persistable]
        return any(name not in ("feed", "fetch") for name in own)
    block = json.loads(path.read_text("utf-8"))["program"]["regions"][0]["blocks"][0]
    return any(operator["#"] == "p" for operator in block["ops"])


def _describe(tensor: Any, name: str) -> tuple[str, str, list[int]]:
    shape = [-1 if size is None or size < 0 else int(size) for size in tensor.shape]
    return name, str(tensor.dtype).removeprefix("paddle."), shape
