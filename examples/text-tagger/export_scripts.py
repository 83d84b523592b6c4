"""Exports a model to try the task with: a script is a tag from 20 % of the letters on.

Run it as `python export_scripts.py REPOSITORY`. It writes the model REPOSITORY/scripts.
"""

import sys
from pathlib import Path

import paddle

CONFIG = """\
pipeline = "tagger"

[dynamic_batching]
max_batch_size = 8

[parameters]
tags = ["han", "kana", "hangul", "cyrillic", "latin"]
"""

model = Path(sys.argv[1], "scripts")
network = paddle.nn.Linear(5, 5)
network.weight.set_value(paddle.eye(5) * 20.0)
network.bias.set_value(paddle.full([5], -4.0))
network.eval()
shares = paddle.static.InputSpec([None, 5], "float32", "shares")
paddle.jit.save(network, str(model / "1" / "inference"), input_spec=[shares])
(model / "config.toml").write_text(CONFIG, "utf-8")
