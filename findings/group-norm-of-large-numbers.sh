#!/bin/sh
# Group norm of large numbers with a small spread is impossible in Paddle and in ONNX Runtime.
#
# Guess: group norm of 9999, 10000, 10001 and 10003 is about -1.2, -0.5, 0.2 and 1.5, as layer norm
# of the same numbers, and no normalised value of four can exceed the square root of 3. Seen: the CPU
# kernels of both return values in the hundreds, without a warning: their variance is the mean of the
# squares less the square of the mean, in float32. Paddle's layer norm and OpenVINO's
# GroupNormalization are right. Features that are not centred (temperatures in kelvin, coordinates,
# sums of pixels) meet it.
set -eu
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
python3 -m venv "$scratch/venv"
"$scratch/venv/bin/pip" install --quiet paddlepaddle==3.2.2 onnxruntime==1.31.1 openvino==2026.4.1 onnx==1.23.2 numpy==2.4.6
GLOG_minloglevel=2 "$scratch/venv/bin/python" - 2>/dev/null <<'PYTHON'
import numpy as np
import onnxruntime
import openvino
import paddle
from onnx import TensorProto, helper, numpy_helper

x = np.array([9999, 10000, 10001, 10003], np.float32).reshape(1, 2, 2)
exact = x.astype(np.float64)
expected = (exact - exact.mean()) / np.sqrt(exact.var() + 1e-5)

graph = helper.make_graph(
    [helper.make_node("GroupNormalization", ["x", "s", "b"], ["y"], num_groups=1, epsilon=1e-5)],
    "norm",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
    [helper.make_tensor_value_info("y", TensorProto.FLOAT, x.shape)],
    [
        numpy_helper.from_array(np.ones(2, np.float32), "s"),
        numpy_helper.from_array(np.zeros(2, np.float32), "b"),
    ],
)
made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
made.ir_version = 10
program = made.SerializeToString()

group = paddle.nn.GroupNorm(1, 2)(paddle.to_tensor(x)).numpy()
layer = paddle.nn.LayerNorm([2, 2])(paddle.to_tensor(x)).numpy()
session = onnxruntime.InferenceSession(program, providers=["CPUExecutionProvider"])
runtime = session.run(None, {"x": x})[0]
core = openvino.Core()
settings = {"INFERENCE_PRECISION_HINT": "f32"}
vino = core.compile_model(core.read_model(program), "CPU", settings)([x])[0]
print("paddle", paddle.__version__, "onnxruntime", onnxruntime.__version__, "openvino", openvino.__version__)
print("expected:                    ", expected.ravel().round(2))
print("group norm of Paddle:        ", group.ravel().round(2))
print("layer norm of Paddle:        ", layer.ravel().round(2))
print("group norm of ONNX Runtime:  ", runtime.ravel().round(2))
print("group norm of OpenVINO:      ", vino.ravel().round(2))
right = all(np.allclose(y, expected, atol=0.05) for y in (layer, vino))
wrong = all(np.abs(y).max() > 2 for y in (group, runtime))
raise SystemExit(0 if right and wrong else 1)
PYTHON
