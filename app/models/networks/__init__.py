"""Dynamic-graph networks by name, as the `network` table of a manifest records them."""

from collections.abc import Mapping
from typing import Any

import paddle
from paddle import Tensor, nn
from paddle.static import InputSpec

from app.contracts.errors import ExportError
from app.models.networks.bert import BertClassifier, BertConfig, StaticBertClassifier
from app.models.networks.u2net import U2NET, U2NETP, U2NetMask

NAMES = ("bert", "mnist", "u2net", "u2netp")


def build(name: str, options: Mapping[str, Any], *, static: bool = False) -> nn.Layer:
    """Build the network as a dynamic graph with untrained weights.

    `static` selects the form for export: the same parameters and outputs, fewer operators. Raises
    ExportError for an unknown name or options that the network does not take.
    """
    try:
        match name:
            case "u2netp":
                return U2NetMask(U2NETP, **options)
            case "u2net":
                return U2NetMask(U2NET, **options)
            case "bert":
                form = StaticBertClassifier if static else BertClassifier
                return form(BertConfig(**options))
            case "mnist":
                return LinearDigits(**options)
    except TypeError as error:
        raise ExportError(f"network {name!r} does not take these options: {error}") from error
    raise ExportError(f"unknown network {name!r}; known: {', '.join(NAMES)}")


class LinearDigits(nn.Layer):
    """Linear classifier: float32 `image` [N,784], pixels in -1..1, to float32 logits [N,10]."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(784, 10)

    @paddle.jit.to_static(  # type: ignore[untyped-decorator]
        input_spec=[InputSpec([-1, 784], "float32", "image")], full_graph=True
    )
    def forward(self, image: Tensor) -> Tensor:
        return self.linear(image)
