"""Exports the models of the tagger, which differ in the names of their tags. Started as a program
of its own, so that the test process never imports Paddle:  python -m tests.tasks.tagger_models DIR
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import paddle
from paddle import nn
from paddle.static import InputSpec

from paddlepool.contracts.tensors import TensorSpec
from tests.model_files import write_config, write_version

TAGS = {
    "scripts": ("han", "kana", "hangul", "cyrillic", "latin"),
    "scripts_zh": ("汉字", "假名", "谚文", "西里尔字母", "拉丁字母"),
}
SPECS = ((TensorSpec("shares", "float32", (-1, 5)),), (TensorSpec("logits", "float32", (-1, 5)),))
CONFIG = """
pipeline = "tagger"
default = {default}
default_group = "native"
[dynamic_batching]
max_batch_size = 4
[[instance_group]]
name = "native"
backend = "paddle_inference"
options = {{ onednn = false }}
[parameters]
tags = [{tags}]
"""


def make_network() -> nn.Layer:
    """Logits of the shares: above 0, and so above a half as a score, from 20 % of the letters."""
    network = nn.Linear(5, 5)
    network.weight.set_value(paddle.eye(5) * 20.0)
    network.bias.set_value(paddle.full([5], -4.0))
    network.eval()
    return network


def main(repository: Path) -> None:
    network = make_network()
    shares = np.array([[1, 0, 0, 0, 0], [0.5, 0.25, 0, 0, 0.25]], np.float32)
    logits = network(paddle.to_tensor(shares)).numpy()
    with tempfile.TemporaryDirectory() as scratch:
        spec = InputSpec([None, 5], "float32", "shares")
        paddle.jit.save(network, f"{scratch}/inference", input_spec=[spec])
        program = Path(scratch, "inference.json").read_bytes()
        params = Path(scratch, "inference.pdiparams").read_bytes()
    for name, tags in TAGS.items():
        write_version(
            repository / name / "1",
            program=program,
            params=params,
            specs=SPECS,
            inputs={"shares": shares},
            outputs={"logits": logits},
        )
        quoted = ", ".join(f'"{tag}"' for tag in tags)
        default = "true" if name == "scripts" else "false"
        write_config(repository / name, CONFIG.format(default=default, tags=quoted))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
