#!/bin/sh
# OpenVINO computes the transposed convolutions at the end of a bfloat16 program in float32.
#
# Guess: with INFERENCE_PRECISION_HINT=bf16, all convolutions run in bfloat16 on a processor that has
# it. Seen: a transposed convolution does so only if an ordinary convolution or a matrix product
# comes after it. At the end of a program, as in the heads of text detectors and of segmentation
# networks, transposed convolutions and the activations around them run in float32, on the largest
# pictures of the network. The same head as 1 x 1 convolutions and one DepthToSpace, which is the
# same arithmetic, runs in bfloat16, and takes a fraction of the time. On a processor without
# bfloat16 there is nothing to see, and the script says so.
set -eu
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
python3 -m venv "$scratch/venv"
"$scratch/venv/bin/pip" install --quiet openvino==2026.4.1 numpy==2.4.6
"$scratch/venv/bin/python" - <<'PYTHON'
import statistics
import time

import numpy as np
import openvino
from openvino import opset13 as opset

CHANNELS, HEIGHT, WIDTH = 24, 240, 168
core, random = openvino.Core(), np.random.default_rng(1)
if "BF16" not in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
    raise SystemExit("this processor has no bfloat16: nothing was tried")

first = random.uniform(-0.1, 0.1, (CHANNELS, CHANNELS, 2, 2)).astype(np.float32)
second = random.uniform(-0.1, 0.1, (CHANNELS, 1, 2, 2)).astype(np.float32)
middle = random.uniform(-0.1, 0.1, (CHANNELS, CHANNELS, 3, 3)).astype(np.float32)


def convolution(data, weights, padding=0):
    pads = [padding, padding]
    return opset.convolution(data, opset.constant(weights), [1, 1], pads, pads, [1, 1])


def enlarged(data, weights):
    return opset.convolution_backprop_data(
        data, opset.constant(weights), [2, 2], pads_begin=[0, 0], pads_end=[0, 0], dilations=[1, 1]
    )


def transposed(data):
    return opset.sigmoid(enlarged(opset.relu(enlarged(data, first)), second))


def pointwise(data):
    product = np.ascontiguousarray(first.transpose(2, 3, 1, 0)).reshape(-1, CHANNELS, 1, 1)
    block = np.zeros((2, 2, 2, 2, 2, 2, CHANNELS), np.float32)  # i k j l, i j c
    for i in range(2):
        for j in range(2):
            block[i, :, j, :, i, j] = second[:, 0].transpose(1, 2, 0)
    data = opset.relu(convolution(data, product))
    data = opset.sigmoid(convolution(data, block.reshape(16, 4 * CHANNELS, 1, 1)))
    return opset.depth_to_space(data, "blocks_first", 4)


def followed(data):
    return convolution(enlarged(data, first), middle, 1)


x = random.uniform(-1, 1, (1, CHANNELS, HEIGHT, WIDTH)).astype(np.float32)


def run(head, hint):
    data = opset.parameter(x.shape, np.float32)
    model = openvino.Model([opset.result(head(opset.relu(convolution(data, middle, 1))))], [data])
    options = {"INFERENCE_PRECISION_HINT": hint, "INFERENCE_NUM_THREADS": 1, "PERF_COUNT": True}
    request = core.compile_model(model, "CPU", options).create_infer_request()
    seconds = []
    for _ in range(12):
        began = time.perf_counter()
        request.infer([x])
        seconds.append(time.perf_counter() - began)
    kinds = {n.node_type: n.exec_type for n in request.get_profiling_info()}
    return request.get_output_tensor(0).data.copy(), kinds, statistics.median(seconds)


exact, same = run(transposed, "f32")[0], run(pointwise, "f32")[0]
_, kinds, slow = run(transposed, "bf16")
_, own, fast = run(pointwise, "bf16")
_, inner, _ = run(followed, "bf16")
print("openvino", openvino.__version__, "numpy", np.__version__)
print("largest difference of the two heads in float32:", float(np.abs(exact - same).max()))
print("transposed convolutions at the end:", kinds["ConvolutionBackpropData"])
print("one before a convolution:", inner["ConvolutionBackpropData"])
print("1 x 1 convolutions:", own["Convolution"])
print(f"whole program: {1000 * slow:.1f} ms with transposed convolutions, {1000 * fast:.1f} without")
seen = (
    np.allclose(exact, same, atol=1e-5)
    and kinds["ConvolutionBackpropData"].endswith("f32")
    and inner["ConvolutionBackpropData"].endswith("bf16")
    and own["Convolution"].endswith("bf16")
    and fast < slow
)
raise SystemExit(0 if seen else 1)
PYTHON
