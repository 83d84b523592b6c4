#!/bin/sh
# OpenVINO's CPU plugin does not divide exactly: floor(41 / 41) is 0.
#
# Guess: in float32 the quotient of two integers that divide evenly is exact (IEEE 754), so its floor
# is the integer quotient, as in NumPy and ONNX Runtime. Seen: a division by a constant becomes a
# product with the rounded reciprocal. For the divisors 1 to 99 and quotients up to 99, the floor of
# 220 of 9,801 exact quotients is one less. Nothing warns, and INFERENCE_PRECISION_HINT does not
# help. Bucketing, paging and positions by `floor(x / n)` are off by one for exact multiples.
set -eu
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
python3 -m venv "$scratch/venv"
"$scratch/venv/bin/pip" install --quiet openvino==2026.4.1 onnxruntime==1.31.1 onnx==1.23.2 numpy==2.4.6
"$scratch/venv/bin/python" - <<'PYTHON'
import numpy as np
import onnxruntime
import openvino
from onnx import TensorProto, helper, numpy_helper


def program(divisor: int) -> bytes:
    graph = helper.make_graph(
        [helper.make_node("Div", ["x", "d"], ["q"]), helper.make_node("Floor", ["q"], ["y"])],
        "floor",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])],
        [numpy_helper.from_array(np.full(1, divisor, np.float32), "d")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    made.ir_version = 9
    return made.SerializeToString()


core, wrong, other = openvino.Core(), 0, 0
quotients = np.arange(1, 100, dtype=np.float32)
for divisor in range(1, 100):
    made, x = program(divisor), quotients * divisor
    model = core.compile_model(core.read_model(made), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    wrong += int((model([x])[0] != quotients).sum())
    session = onnxruntime.InferenceSession(made, providers=["CPUExecutionProvider"])
    other += int((session.run(None, {"x": x})[0] != quotients).sum())
    if divisor == 41:
        print("floor(41 / 41):", model([x])[0][0], "in OpenVINO")
print("openvino", openvino.__version__, "onnxruntime", onnxruntime.__version__)
print(f"wrong: {wrong} of {99 * 99} in OpenVINO, {other} in ONNX Runtime")
raise SystemExit(0 if wrong and not other else 1)
PYTHON
