#!/bin/sh
# ONNX Runtime's sigmoid is 0 below -18, and not monotonic above.
#
# Guess: float32 holds exp(-18) = 1.5e-8 exactly enough, so sigmoid has a small relative error down to
# -87. Seen: the error is absolute, up to 1e-7. sigmoid(-16) is smaller than sigmoid(-17), and below
# -18 it is 0. log(sigmoid(x)), the usual form of a log-likelihood or of a forget gate, is off by 0.6
# at -16 and infinite below -18, without a warning. NumPy in float32 and OpenVINO are right, and so is
# the form -Softplus(-x) in ONNX Runtime itself. paddle2onnx writes Paddle's log_sigmoid in the first
# form. Seen on x86-64 with AVX2 or AVX-512.
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


def program(*nodes: tuple[str, str, str]) -> bytes:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])
    steps = [helper.make_node(kind, [before], [after]) for kind, before, after in nodes]
    made = helper.make_model(
        helper.make_graph(steps, "steps", [x], [y]),
        opset_imports=[helper.make_opsetid("", 18)],
    )
    made.ir_version = 9
    return made.SerializeToString()


def run(made: bytes, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(made, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


core = openvino.Core()
x = np.array([-8, -12, -16, -17, -18.5, -30], np.float32)
expected = (-np.logaddexp(0, -x.astype(np.float64))).astype(np.float32)
sigmoid = run(program(("Sigmoid", "x", "y")), x)
log = program(("Sigmoid", "x", "s"), ("Log", "s", "y"))
with np.errstate(divide="ignore"):
    ours = run(log, x)
compiled = core.compile_model(core.read_model(log), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
other = compiled([x])[0]
stable = run(program(("Neg", "x", "a"), ("Softplus", "a", "b"), ("Neg", "b", "y")), x)
print("onnxruntime", onnxruntime.__version__, "openvino", openvino.__version__)
print("x:                         ", x)
print("sigmoid, ONNX Runtime:     ", sigmoid)
print("log(sigmoid), ONNX Runtime:", ours)
print("log(sigmoid), OpenVINO:    ", other)
print("-softplus(-x), ONNX Runtime:", stable)
seen = (
    sigmoid[2] < sigmoid[3]
    and (sigmoid[4:] == 0).all()
    and abs(ours[2] - expected[2]) > 0.1
    and np.isneginf(ours[4:]).all()
    and np.allclose(other, expected, rtol=1e-5)
    and np.allclose(stable, expected, rtol=1e-5)
)
raise SystemExit(0 if seen else 1)
PYTHON
