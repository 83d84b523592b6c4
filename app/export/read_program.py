"""What a saved program takes and gives: the target of a child process that asks Paddle itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from app.engine.child import Child, ChildDied, Limits
from app.engine.tensors import TensorSpec
from app.errors import ExportError

OPEN_SECONDS = 300.0


def read_specs(
    directory: Path, program: str
) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Inputs and outputs of `program` (.json or .pdmodel, its .pdiparams beside it).

    In a process of its own: a program that Paddle cannot load may end it. Raises ExportError.
    """
    legacy = program.endswith(".pdmodel")
    environment = {
        "GLOG_minloglevel": "2",
        "PYTHONWARNINGS": "ignore",
        # Only with the intermediate representation of its own time does Paddle find a .pdmodel.
        "FLAGS_enable_pir_api": "0" if legacy else "1",
    }
    opening = {"prefix": str(directory / Path(program).stem)}
    try:
        child = Child(
            "app.export.read_program:describe",
            opening,
            limits=Limits(environment=environment),
            start_timeout=OPEN_SECONDS,
        )
    except ChildDied as error:
        raise ExportError(f"{program}: the process that loaded it ended ({error})") from error
    try:
        described = child.ready
        return _specs(described["inputs"]), _specs(described["outputs"])
    finally:
        child.close()


def _specs(described: Sequence[tuple[str, str, Sequence[int]]]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(name, dtype, tuple(shape)) for name, dtype, shape in described)


def describe(opening: Mapping[str, Any]) -> tuple[Mapping[str, Any], Callable[..., Any]]:
    """Runs in the child, once. Outputs are called output_0 and so on, in the program's order:
    their own names are those of temporary variables."""
    import paddle

    paddle.disable_signal_handler()
    try:
        layer = paddle.jit.load(opening["prefix"])
        inputs, outputs = layer._input_spec(), layer._output_spec()
    except Exception as error:
        raise ExportError(
            f"Paddle cannot load {Path(opening['prefix']).name}: {type(error).__name__}"
        ) from error
    found = {
        "inputs": [_describe(spec, spec.name) for spec in inputs],
        "outputs": [_describe(spec, f"output_{index}") for index, spec in enumerate(outputs)],
    }
    return found, _answer_nothing


def _describe(spec: Any, name: str) -> tuple[str, str, list[int]]:
    shape = [-1 if size is None or size < 0 else int(size) for size in spec.shape]
    return name, str(spec.dtype).removeprefix("paddle."), shape


def _answer_nothing(*_call: object) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    return {}, {}
