"""Exports two models to try the task with, and composes them.

Run it as `python export_models.py REPOSITORY`. It writes the models `subject`, which tells coloured
places from white ones, `colour`, which tells red, green and blue apart, and `two-models`, which is
composed of both.
"""

import sys
from pathlib import Path

import cv2
import numpy as np
import paddle
from paddle import nn

PART = """\
[dynamic_batching]
max_batch_size = 8
"""
COMPOSED = """\
pipeline = "two-models"

[parts]
find = "subject"
classify = "colour"

[parameters]
labels = ["red", "green", "blue"]
"""
repository = Path(sys.argv[1])


def export(name: str, network: nn.Layer, side: int) -> None:
    """Write a model of pictures with `side` rows and columns."""
    network.eval()
    picture = paddle.static.InputSpec([None, 3, side, side], "float32", "picture")
    paddle.jit.save(network, str(repository / name / "1" / "inference"), input_spec=[picture])
    (repository / name / "config.toml").write_text(PART, "utf-8")


darkness = nn.Conv2D(3, 1, 1)  # the logit of a place: 5 if it is pure red, -5 if it is white
darkness.weight.set_value(paddle.full([1, 3, 1, 1], -5.0))
darkness.bias.set_value(paddle.full([1], 10.0))
export("subject", nn.Sequential(nn.AvgPool2D(4), darkness), side=64)

linear = nn.Linear(3, 3)
linear.weight.set_value(paddle.eye(3) * 10.0)
export("colour", nn.Sequential(nn.AdaptiveAvgPool2D(1), nn.Flatten(), linear), side=32)

composed = repository / "two-models"
(composed / "1").mkdir(parents=True, exist_ok=True)
(composed / "config.toml").write_text(COMPOSED, "utf-8")
sample = np.full((90, 120, 3), 255, np.uint8)
sample[30:60, 30:90] = (255, 0, 0)  # blue, in the order of OpenCV
cv2.imwrite(str(composed / "1" / "sample.png"), sample)
