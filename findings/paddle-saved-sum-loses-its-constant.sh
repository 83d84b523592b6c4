#!/bin/sh
# A saved Paddle program that only adds a constant to its input returns the input.
#
# Guess: `paddle.jit.load` runs what `paddle.jit.save` wrote, so `x + 5.5` is 6.5 for 1. Seen: the file
# is right (`scale` with the bias 5.5), but the loaded layer answers 1, for float32, float64 and
# integers, without a warning; Paddle Inference with the new executor refuses the same file ("More than
# one shadow output named with x"). One more operator before or after the sum makes both right.
set -eu
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
python3 -m venv "$scratch/venv"
"$scratch/venv/bin/pip" install --quiet paddlepaddle==3.2.2 setuptools numpy==2.4.6
cd "$scratch"
cat > saved.py <<'PYTHON'
import paddle
from paddle import inference


class Sum(paddle.nn.Layer):
    def forward(self, x):
        return x + 5.5


class Product(paddle.nn.Layer):
    def forward(self, x):
        return (x + 5.5) * 2


def loaded(layer):
    spec = paddle.static.InputSpec([None, 3], "float32", "x")
    paddle.jit.save(layer, "saved", input_spec=[spec])
    x = paddle.to_tensor([[1.0, 2.0, 3.0]])
    config = inference.Config("saved.json", "saved.pdiparams")
    config.disable_glog_info()
    config.enable_new_ir(True)
    config.enable_new_executor()
    try:
        predictor = inference.create_predictor(config)
        predictor.get_input_handle("x").copy_from_cpu(x.numpy())
        predictor.run()
        [name] = predictor.get_output_names()
        said = predictor.get_output_handle(name).copy_to_cpu().tolist()
    except Exception as error:
        said = str(error).strip().splitlines()[-1]
    return paddle.jit.load("saved")(x).tolist(), said


print("paddlepaddle", paddle.__version__)
found, said = loaded(Sum())
print("x + 5.5 of 1, 2, 3:", found, "| Paddle Inference:", said[:90])
product, _ = loaded(Product())
print("(x + 5.5) * 2 of 1, 2, 3:", product)
present = found == [[1.0, 2.0, 3.0]] and product == [[13.0, 15.0, 17.0]]
raise SystemExit(0 if present else 1)
PYTHON
GLOG_minloglevel=3 venv/bin/python -W ignore saved.py
