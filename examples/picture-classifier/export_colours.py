"""Exports a model to try the task with: it tells red, green and blue pictures apart.

Run it as `python export_colours.py REPOSITORY`. It writes the model REPOSITORY/colours.
"""

import sys
from pathlib import Path

import paddle

CONFIG = """\
pipeline = "picture-classifier"

[dynamic_batching]
max_batch_size = 8

[parameters]
size = 64
labels = ["red", "green", "blue"]
"""

model = Path(sys.argv[1], "colours")
linear = paddle.nn.Linear(3, 3)
linear.weight.set_value(paddle.eye(3) * 10.0)
network = paddle.nn.Sequential(paddle.nn.AdaptiveAvgPool2D(1), paddle.nn.Flatten(), linear)
network.eval()
picture = paddle.static.InputSpec([None, 3, 64, 64], "float32", "picture")
paddle.jit.save(network, str(model / "1" / "inference"), input_spec=[picture])
(model / "config.toml").write_text(CONFIG, "utf-8")
