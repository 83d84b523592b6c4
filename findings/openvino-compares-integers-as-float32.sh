#!/bin/sh
# OpenVINO's CPU plugin compares, divides and sums integers as float32.
#
# Guess: int32 operators are exact, and int64 ones too for values that fit in 32 bits, as in ONNX
# Runtime and NumPy. Seen: additions and products are exact, but comparisons, quotients, remainders,
# powers, matrix products, sums and extrema of reductions are rounded like float32, without a
# warning. 16777217 equals 16777216, and 16777219 % 10 is 0. Remainders are wrong from 2^23 on. An
# embedding of hashed ids (ids % buckets) reads other rows, and a mask `ids == user` has more ones.
set -eu
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
python3 -m venv "$scratch/venv"
"$scratch/venv/bin/pip" install --quiet openvino==2026.4.1 onnxruntime==1.31.1 onnx==1.23.2 numpy==2.4.6
"$scratch/venv/bin/python" - <<'PYTHON'
import numpy as np
import onnxruntime
import openvino
from onnx import TensorProto, helper

ROWS = 20_000
OPERATORS = {
    "Equal": TensorProto.BOOL, "Greater": TensorProto.BOOL, "LessOrEqual": TensorProto.BOOL,
    "Div": None, "Mod": None, "Add": None, "Sub": None, "Max": None, "Min": None,
}  # fmt: skip
TYPES = {"int32": TensorProto.INT32, "int64": TensorProto.INT64}


def program(operator: str, kind: int, result: int | None) -> bytes:
    inputs = [helper.make_tensor_value_info(name, kind, ["n"]) for name in "xy"]
    output = helper.make_tensor_value_info("z", result or kind, ["n"])
    graph = helper.make_graph([helper.make_node(operator, ["x", "y"], ["z"])], "one", inputs, [output])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    made.ir_version = 9
    return made.SerializeToString()


core, random, wrong = openvino.Core(), np.random.default_rng(1), {}
for name, kind in TYPES.items():
    for operator, result in OPERATORS.items():
        x = random.integers(2**24, 2**30, ROWS).astype(name)
        y = random.integers(2, 1000, ROWS).astype(name) if operator in ("Div", "Mod") else x - 1
        made = program(operator, kind, result)
        session = onnxruntime.InferenceSession(made, providers=["CPUExecutionProvider"])
        right = session.run(None, {"x": x, "y": y})[0]
        compiled = core.compile_model(core.read_model(made), "CPU")
        wrong[name, operator] = int((compiled({"x": x, "y": y})[0] != right).sum())
print("openvino", openvino.__version__, "onnxruntime", onnxruntime.__version__)
for (name, operator), number in wrong.items():
    print(f"{operator} of {name}: {number} of {ROWS} wrong")
exact = ("Add", "Sub", "Max", "Min")
raise SystemExit(0 if all((number == 0) == (key[1] in exact) for key, number in wrong.items()) else 1)
PYTHON
