"""What the tiny model takes and gives; apart from its export so that no test imports Paddle."""

from app.contracts.tensors import TensorSpec

SPECS = (
    (TensorSpec("image", "float32", (-1, 3, -1, -1)),),
    (TensorSpec("scores", "float32", (-1, 2)), TensorSpec("mean", "float32", (-1, 4))),
)
