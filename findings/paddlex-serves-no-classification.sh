#!/bin/sh
# PaddleX 3.7.2's basic serving answers each request for image classification with 500.
#
# Guess: `paddlex --serve` returns the labels that the same pipeline returns in Python. Seen: in
# Python, the labels; over HTTP, 500, because the reply model expects one number for each class and
# gets an array: the numbers of a picture's classes keep the axis of the batch.
set -eu
scratch=$(mktemp -d)
server=
trap 'test -z "$server" || kill "$server"; rm -rf "$scratch"' EXIT
python3 -m venv "$scratch/venv"
"$scratch/venv/bin/pip" install --quiet "paddlex[cv,serving]==3.7.2" paddlepaddle==3.2.2 setuptools
cd "$scratch"
mkdir model
cat > made.py <<'PYTHON'
import numpy as np
import paddle
import yaml
from PIL import Image

paddle.seed(1)
network = paddle.nn.Sequential(
    paddle.nn.Flatten(), paddle.nn.Linear(3 * 32 * 32, 3), paddle.nn.Softmax()
)
network.eval()
spec = paddle.static.InputSpec([None, 3, 32, 32], "float32", "x")
paddle.jit.save(network, "model/inference", input_spec=[spec])
scaled = {"mean": [0.5] * 3, "std": [0.5] * 3, "scale": 1 / 255, "channel_num": 3, "order": ""}
steps = [{"ResizeImage": {"size": [32, 32]}}, {"NormalizeImage": scaled}, {"ToCHWImage": None}]
name = "MobileNetV2_x1_0"
document = {
    "Global": {"model_name": name},
    "PreProcess": {"transform_ops": steps},
    "PostProcess": {"Topk": {"topk": 2, "label_list": ["red", "green", "blue"]}},
}
open("model/inference.yml", "w").write(yaml.safe_dump(document))
module = {
    "module_name": "image_classification",
    "model_name": name,
    "model_dir": "model",
    "batch_size": 4,
    "topk": 2,
}
pipeline = {
    "pipeline_name": "image_classification",
    "SubModules": {"ImageClassification": module},
}
open("pipeline.yaml", "w").write(yaml.safe_dump(pipeline))
Image.fromarray(np.full((40, 60, 3), (200, 40, 40), np.uint8)).save("red.png")
PYTHON
cat > asked.py <<'PYTHON'
import base64
import importlib.metadata
import json
import sys
import time
import urllib.error
import urllib.request

from paddlex import create_pipeline

[result] = create_pipeline("pipeline.yaml", device="cpu").predict("red.png")
print("paddlex", importlib.metadata.version("paddlex"))
print("in Python:", len(result["label_names"]), "labels")
address = f"http://127.0.0.1:{sys.argv[1]}"
for _ in range(240):
    try:
        urllib.request.urlopen(f"{address}/health", timeout=5)
        break
    except OSError:
        time.sleep(0.5)
picture = base64.b64encode(open("red.png", "rb").read()).decode()
request = urllib.request.Request(
    f"{address}/image-classification",
    json.dumps({"image": picture, "visualize": False}).encode(),
    {"Content-Type": "application/json"},
)
try:
    status = urllib.request.urlopen(request, timeout=60).status
except urllib.error.HTTPError as error:
    status = error.code
print("over HTTP:", status)
raise SystemExit(0 if (len(result["label_names"]), status) == (2, 500) else 1)
PYTHON
export PADDLE_PDX_DISABLE_MODEL_SOURCE_CHECK=True GLOG_minloglevel=3
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
venv/bin/python -W ignore made.py
venv/bin/paddlex --serve --pipeline pipeline.yaml --device cpu --host 127.0.0.1 --port "$port" > server.log 2>&1 &
server=$!
venv/bin/python -W ignore asked.py "$port"
