"""Profiles the program that Paddle Inference actually runs: its operators and the time of each.

The operators come from the optimised program, which the predictor saves after its passes. The times
come from the profiler's events of a few runs. The two are matched by name and order: the events of
a name belong to its last operators, because the first may run only while the program is loaded.
What the executor adds (layout changes) has only an event.
"""

import json
import tempfile
import warnings
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import paddle
from paddle import inference

from paddlepool.contracts.errors import BackendError
from paddlepool.contracts.tensors import Tensors
from paddlepool.engine.backends.handler import Handler
from paddlepool.engine.backends.paddle_inference import OPTIONS, configured
from paddlepool.engine.backends.paddle_operators import operators_of

WARM_UP, RUNS = 3, 10
CONSTANT = ("p", "pd_op.full", "onednn_op.full", "pd_op.full_int_array")
ACTIVATIONS = ("fuse_activation", "activation_type")


def open_profile(opening: Mapping[str, Any]) -> tuple[Mapping[str, Any], Handler]:
    """Return the handler of a Child, each call of which profiles the program on its arrays.

    The reply has the profile as JSON in the array `profile`. `opening` has directory, program,
    params, threads and onednn (bool). A call raises BackendError if the program has no parameters
    or Paddle gives no profile, and the errors of operators_of() and configured().
    """
    paddle.disable_signal_handler()

    def handle(
        _meta: Mapping[str, Any], arrays: Tensors, _descriptors: Sequence[int]
    ) -> tuple[Mapping[str, Any], Tensors]:
        profile = json.dumps(_profile(opening, arrays)).encode()
        # As an array, because a large graph does not fit the header of a reply.
        return {}, {"profile": np.frombuffer(profile, np.uint8)}

    return {}, handle


def _profile(opening: Mapping[str, Any], inputs: Tensors) -> dict[str, Any]:
    options = OPTIONS | {"onednn": opening["onednn"]}
    if opening["params"] is None:
        raise BackendError("Paddle cannot save the optimised form of a program without parameters")
    with tempfile.TemporaryDirectory() as scratch:
        exported = operators_of(Path(opening["directory"], opening["program"]))
        config = configured(paddle.base.core, opening, options, exported)
        config.set_optim_cache_dir(scratch)
        config.enable_save_optim_model(True)
        predictor = inference.create_predictor(config)
        saved = Path(scratch) / "_optimized.json"
        if not saved.exists():
            raise BackendError("Paddle saved no optimised program")
        program = json.loads(saved.read_text("utf-8"))
        for name in predictor.get_input_names():
            predictor.get_input_handle(name).copy_from_cpu(np.ascontiguousarray(inputs[name]))
        for _ in range(WARM_UP):
            predictor.run()
        events = _events(predictor, Path(scratch))
    operators = _operators(program)
    known = {operator["name"] for operator in operators}
    before = json.loads(Path(opening["directory"], opening["program"]).read_text("utf-8"))
    return {
        "before": len(_operators(before)),
        "operators": _linked(_timed(operators, events)),
        "added": [(name, time) for name, time in events if name not in known],
    }


def _events(predictor: Any, scratch: Path) -> list[tuple[str, float]]:
    """Run RUNS times; return each operator's name and median milliseconds, in running order.

    Raises BackendError if the profiler saw no operators, or a number that RUNS does not divide.
    """
    traces = scratch / "traces"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        profiler = paddle.profiler.Profiler(
            targets=[paddle.profiler.ProfilerTarget.CPU],
            on_trace_ready=paddle.profiler.export_chrome_tracing(str(traces)),
        )
        profiler.start()
        for _ in range(RUNS):
            predictor.run()
        profiler.stop()
    [file] = traces.iterdir()
    trace = json.loads(file.read_text("utf-8"))["traceEvents"]
    events = sorted(
        (event for event in trace if event.get("cat") == "Operator" and event.get("ph") == "X"),
        key=lambda event: event["ts"],
    )
    if not events or len(events) % RUNS:
        raise BackendError(f"the profiler saw {len(events)} operators in {RUNS} equal runs")
    count = len(events) // RUNS
    return [
        (
            events[index]["name"].partition("[")[0].rstrip("_"),
            median(float(event["dur"]) for event in events[index::count]) / 1000,
        )
        for index in range(count)
    ]


def _operators(program: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the operators that compute in every run, in order.

    Parameters, constants and operators that depend only on them are left out, because they run
    once, when the program is loaded. So are the operators of the program's inputs and outputs.
    """
    operators = []
    constants: set[int] = set()
    for operator in program["program"]["regions"][0]["blocks"][0]["ops"]:
        name = _name(operator["#"])
        inputs = [value["%"] for value in operator.get("I", []) if value["%"] != 0]
        if name in CONSTANT or (inputs and constants.issuperset(inputs)):
            outputs = operator["O"]  # a parameter has one value here, not a list
            outputs = outputs if isinstance(outputs, list) else [outputs]
            constants.update(value["%"] for value in outputs)
            continue
        if name in ("pd_op.data", "pd_op.fetch"):
            continue
        attributes = {item["N"]: item["AT"].get("D") for item in operator.get("A", [])}
        fused = [str(attributes[key]) for key in ACTIVATIONS if attributes.get(key)]
        fused += ["residual"] if attributes.get("fuse_residual_connection") else []
        kind = operator["O"][0]["TT"] if operator["O"] else {}
        operators.append(
            {
                "name": name,
                "fused": fused,
                "inputs": [value["%"] for value in operator["I"]],
                "outputs": [value["%"] for value in operator["O"]],
                "shape": list(kind["D"][1]) if kind.get("#") == "0.t_dtensor" else [],
            }
        )
    return operators


def _name(name: str) -> str:
    """Return an operator's full name: the saved program has numbers instead of dialect names."""
    for short, dialect in (("0.", "builtin."), ("1.", "pd_op.")):
        if name.startswith(short):
            return dialect + name.removeprefix(short).rstrip("_")
    return name.rstrip("_")


def _timed(
    operators: Sequence[dict[str, Any]], events: Sequence[tuple[str, float]]
) -> list[dict[str, Any]]:
    times: defaultdict[str, list[float]] = defaultdict(list)
    for name, milliseconds in events:
        times[name].append(milliseconds)
    wanted = Counter(operator["name"] for operator in operators)
    timed = []
    for operator in operators:
        own = times[operator["name"]]
        # Operators that ran only while loading have no events. Of the operators of one name, these
        # are the first, so the events belong to the last.
        if wanted[operator["name"]] <= len(own):
            timed.append(operator | {"milliseconds": own.pop(0)})
        wanted[operator["name"]] -= 1
    return timed


def _linked(operators: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Replace each operator's `inputs` and `outputs`, in place, by `sources`; return the list.

    The sources are the indices of the operators that produce its inputs.
    """
    makers: dict[int, int] = {}
    for index, operator in enumerate(operators):
        operator["sources"] = sorted({makers[v] for v in operator.pop("inputs") if v in makers})
        makers.update(dict.fromkeys(operator.pop("outputs"), index))
    return operators
