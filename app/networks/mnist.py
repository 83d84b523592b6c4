"""The linear digit classifier of Paddle's own first tutorial: one fully connected layer."""

import paddle
from paddle import Tensor, nn
from paddle.static import InputSpec


class LinearDigits(nn.Layer):
    """float32 `image` [N,784], pixels scaled to -1..1, to float32 logits [N,10]."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(784, 10)

    @paddle.jit.to_static(  # type: ignore[untyped-decorator]
        input_spec=[InputSpec([-1, 784], "float32", "image")], full_graph=True
    )
    def forward(self, image: Tensor) -> Tensor:
        return self.linear(image)
