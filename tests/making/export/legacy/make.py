"""Writes model.pdmodel and model.pdiparams, the form that Paddle 2 saved and 3.2 still reads.

Paddle 3.2 cannot write it, so this runs in an environment of its own:

    python3.11 -m venv old && old/bin/pip install paddlepaddle==2.6.2 'numpy<2' setuptools
    old/bin/python tests/making/export/legacy/make.py
"""

from pathlib import Path

import paddle
from paddle import nn
from paddle.static import InputSpec


class TwoInTwoOut(nn.Layer):
    """float32 image [N,3,8,8] and int64 tokens [N,T] to float32 scores [N,5] and int64 best [N]."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2D(3, 6, 3, padding=1)
        self.embedding = nn.Embedding(16, 6)
        self.classify = nn.Linear(6, 5)

    def forward(self, image: paddle.Tensor, tokens: paddle.Tensor) -> tuple[paddle.Tensor, ...]:
        seen = nn.functional.relu(self.convolution(image)).mean([2, 3])
        scores = self.classify(seen + self.embedding(tokens).mean(1))
        return scores, scores.argmax(1)


if __name__ == "__main__":
    paddle.seed(11)
    network = TwoInTwoOut()
    network.eval()
    paddle.jit.save(
        network,
        str(Path(__file__).parent / "model"),
        input_spec=[
            InputSpec([None, 3, 8, 8], "float32", "image"),
            InputSpec([None, None], "int64", "tokens"),
        ],
    )
