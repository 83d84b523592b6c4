#!/bin/sh
# paddle2onnx computes `x * 3 + 7` of int64 in float32: integers above 2^24 are rounded.
#
# Guess: the ONNX operators Mul and Add take int64, so integers stay integers, as in Paddle and as in
# the converter's own conversion of `x * y`. Seen: `scale`, which Paddle writes for a product with a
# number and for a sum with one, becomes Cast to float32, Mul, Add, Cast to int64. Small integers hide
# it; identifiers and times in milliseconds are answered wrong, without a warning.
set -eu
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
python3 -m venv "$scratch/venv"
"$scratch/venv/bin/pip" install --quiet paddlepaddle==3.2.2 paddle2onnx==2.1.0 onnxruntime==1.31.1 setuptools
cd "$scratch"
cat > converted.py <<'PYTHON'
import numpy as np
import onnxruntime
import paddle
import paddle2onnx


class Scale(paddle.nn.Layer):
    def forward(self, x):
        return x * 3 + 7


x = np.array([[5, 2**24 + 1, 1_700_000_000_123]])
layer = Scale()
right = layer(paddle.to_tensor(x)).numpy()
spec = paddle.static.InputSpec([None, 3], "int64", "x")
paddle.jit.save(layer, "saved", input_spec=[spec])
paddle2onnx.export("saved.json", "", "saved.onnx", opset_version=18, optimize_tool="None")
session = onnxruntime.InferenceSession("saved.onnx", providers=["CPUExecutionProvider"])
[found] = session.run(None, {"x": x})
print("paddlepaddle", paddle.__version__, "paddle2onnx", paddle2onnx.__version__)
print("Paddle:   ", right.tolist())
print("converted:", found.tolist())
raise SystemExit(0 if (found == right).tolist() == [[True, False, False]] else 1)
PYTHON
GLOG_minloglevel=3 venv/bin/python -W ignore converted.py
