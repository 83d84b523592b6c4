#!/bin/sh
# Paddle saves a program with a NaN among its constants, and cannot load it.
#
# Guess: what `paddle.jit.save` accepts, `paddle.jit.load` reads; infinities, which masks use, work.
# Seen: a NaN in a constant tensor is written to the JSON without a value. Loading the file, with
# `paddle.jit.load` or Paddle Inference, fails in the JSON reader ("key 'D' not found"), a sentence
# that names neither the NaN nor the operator.
set -eu
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
python3 -m venv "$scratch/venv"
"$scratch/venv/bin/pip" install --quiet paddlepaddle==3.2.2 setuptools numpy==2.4.6
cd "$scratch"
cat > saved.py <<'PYTHON'
import paddle


class Add(paddle.nn.Layer):
    def __init__(self, value):
        super().__init__()
        self.value = value

    def forward(self, x):
        return paddle.nn.functional.relu(x) + paddle.to_tensor([self.value, 1.0])


def said(value):
    spec = paddle.static.InputSpec([None, 2], "float32", "x")
    paddle.jit.save(Add(value), "saved", input_spec=[spec])
    try:
        return paddle.jit.load("saved")(paddle.to_tensor([[1.0, 2.0]])).tolist()
    except Exception as error:
        return str(error).strip().splitlines()[-1]


print("paddlepaddle", paddle.__version__)
infinite, nan = said(float("-inf")), said(float("nan"))
print("with -inf:", infinite)
print("with NaN: ", nan)
raise SystemExit(0 if infinite == [[float("-inf"), 3.0]] and "key 'D' not found" in str(nan) else 1)
PYTHON
GLOG_minloglevel=3 venv/bin/python -W ignore saved.py
