"""Runs small programs on one engine, each in a process of its own.

    python -m tests.engine.backends.sweep.run ENGINE DIRECTORY [NAME ... | PART/PARTS]

DIRECTORY/NAME receives the outputs of each run, or the file ENGINE.refused with the reason. The
engine "dygraph" comes first: it writes the programs and their inputs, and its outputs are the right
ones. "converted" makes the ONNX programs that ONNX Runtime and OpenVINO read. The processes are
forked from one that has imported what the engine needs.
"""

import json
import os
import pkgutil
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

ENGINES: dict[str, tuple[str, dict[str, Any]]] = {
    "native": ("paddle_inference", {"onednn": False}),
    "onednn": ("paddle_inference", {"onednn": True}),
    "jit": ("paddle_jit", {}),
    "onnxruntime": ("onnxruntime", {}),
    "openvino": ("openvino", {}),
}
"""Backend and options of the groups that serve."""
RUNS = 2
CONVERTED = ("onnxruntime", "openvino")


def export(program: Any, into: Path) -> None:
    """Write a program of `sweep.program.Program`, with inputs and outputs of RUNS runs."""
    import paddle

    from tests.engine.backends.sweep.program import SIZES

    network = program.network()
    named = {f"x{number}": spec for number, spec in enumerate(program.inputs)}
    outputs: list[np.ndarray[Any, Any]] = []
    for run, sizes in enumerate(SIZES):
        random = np.random.default_rng(run)
        inputs = {name: spec.array(sizes, random) for name, spec in named.items()}
        result = network(*map(paddle.to_tensor, inputs.values()))
        results = result if isinstance(result, list | tuple) else [result]
        outputs = [tensor.numpy() for tensor in results]
        _save(into / f"inputs{run}.npz", inputs)
        _save(into / f"dygraph{run}.npz", dict(zip(map(str, range(9)), outputs, strict=False)))
    free = dict.fromkeys(SIZES[0])
    specs = [
        paddle.static.InputSpec(spec.shape(free), spec.dtype, name) for name, spec in named.items()
    ]
    paddle.jit.save(network, str(into / "program"), input_spec=specs)
    params = "program.pdiparams" if (into / "program.pdiparams").exists() else None
    opening = {
        "directory": str(into), "program": "program.json", "params": params, "format": "paddle",
        "inputs": [{"name": name, "dtype": spec.dtype} for name, spec in named.items()],
        "outputs": [{"name": str(number)} for number in range(len(outputs))],
        "threads": 1, "network": None,
    }  # fmt: skip
    (into / "opening.json").write_text(json.dumps(opening))


def convert(into: Path) -> None:
    """Write the ONNX program, as the backends make it in a process that they start."""
    from paddlepool.contracts.errors import BackendError
    from paddlepool.engine.backends import onnx_program
    from paddlepool.engine.backends.converter_rules import unconvertible
    from paddlepool.engine.backends.paddle_operators import operators_of

    if reasons := unconvertible(operators_of(into / "program.json")):
        raise BackendError("; ".join(reasons))
    params = json.loads((into / "opening.json").read_text())["params"] or ""
    with (into / "converted.onnx").open("wb") as stream:
        os.dup2(stream.fileno(), 1)
        onnx_program.main(into, "program.json", params)


def run(engine: str, open_model: Callable[..., Any], into: Path) -> None:
    """Open the program with the backend, and run it on all inputs."""
    opening = json.loads((into / "opening.json").read_text()) | {"options": ENGINES[engine][1]}
    if engine in CONVERTED:
        opening |= {"format": "onnx", "program": "converted.onnx"}
    _, handle = open_model(opening)
    for number in range(RUNS):
        _, outputs = handle({}, dict(np.load(into / f"inputs{number}.npz")), ())
        _save(into / f"{engine}{number}.npz", outputs)


def _save(path: Path, arrays: Any) -> None:
    np.savez(path, **arrays)


def in_a_process_of_its_own(task: Callable[[], None], refused: Path) -> None:
    """Fork; what the task raises is written to `refused`."""
    if child := os.fork():
        _, status = os.waitpid(child, 0)
        if status:
            refused.write_text(f"the process ended with status {status}")
        return
    try:
        task()
    except BaseException as error:
        refused.write_text(f"{type(error).__name__}: {str(error).strip()}")
    finally:
        os._exit(0)


def opener(engine: str) -> Callable[..., Any]:
    """Return the function that opens the engine's backend, with what it imports imported."""
    from paddlepool.engine.backends import BACKENDS

    backend = ENGINES[engine][0]
    if backend == "paddle_inference":
        from paddlepool.engine.backends.paddle_inference import _load_core

        _load_core()
        for name in ("paddle", "paddle.base"):  # the backend looks for the real package
            del sys.modules[name]
    elif backend in CONVERTED:
        __import__(backend)
    function: Callable[..., Any] = pkgutil.resolve_name(BACKENDS[backend])
    return function


def main(engine: str, directory: Path, names: list[str]) -> None:
    tasks: dict[str, Callable[[Path], None]] = {}
    if engine == "dygraph":
        from tests.engine.backends.sweep import differences, layers, structures

        for program in (*layers.programs(), *structures.programs(), *differences.programs()):
            tasks[program.name] = partial(export, program)
    else:
        if engine == "converted":
            import paddle2onnx  # noqa: F401

            task: Callable[[Path], None] = convert
        else:
            task = partial(run, engine, opener(engine))
        needed = "converted.onnx" if engine in CONVERTED else "opening.json"
        tasks = {path.parent.name: task for path in directory.glob(f"*/{needed}")}
    chosen = sorted(tasks)
    if names and "/" in names[0]:
        part, parts = map(int, names[0].split("/"))
        chosen = chosen[part::parts]
    elif names:
        chosen = sorted(names)
    for name in chosen:
        into = directory / name
        into.mkdir(exist_ok=True)
        in_a_process_of_its_own(partial(tasks[name], into), into / f"{engine}.refused")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
