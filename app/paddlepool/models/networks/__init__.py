"""Builds networks (dynamic graphs) by the name in a manifest; loads saved programs as layers."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import paddle
from paddle import Tensor, nn
from paddle.static import InputSpec

from paddlepool.contracts.errors import BackendError, ExportError
from paddlepool.models.networks.bert import BertClassifier, BertConfig, StaticBertClassifier
from paddlepool.models.networks.u2net import U2NET, U2NETP, U2NetMask

NAMES = ("bert", "mnist", "u2net", "u2netp")
PROGRAM, PARAMS = "inference.json", "inference.pdiparams"


def build(name: str, options: Mapping[str, Any], *, static: bool = False) -> nn.Layer:
    """Build the network as a dynamic graph with untrained weights.

    `static` selects BERT's form for export, which has the same parameters and outputs but fewer
    operators; the other networks have one form. Raises ExportError for an unknown name or options
    that the network does not take.
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


def load_program(path: Path) -> Any:
    """Load a saved program of Paddle 3 as a layer, by its path without a suffix.

    Raises BackendError in the mode for programs of Paddle 2, in which `paddle.jit.load` would
    unpickle a file *.info next to the program and run any code in it.
    """
    if not paddle.framework.use_pir_api():
        raise BackendError("FLAGS_enable_pir_api=0 loads programs of Paddle 2, which are pickled")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return paddle.jit.load(str(path))


def load_parameters(directory: Path) -> dict[str, Any]:
    """Return the parameters of the program in `directory` as float32, for `set_state_dict`.

    The keys are the structured names. Raises BackendError as load_program() does.
    """
    program = load_program(directory / PROGRAM.removesuffix(".json"))
    # Loading appends an index to every parameter's name.
    return {
        parameter.name.rpartition("_")[0]: parameter.astype("float32")
        for parameter in program.parameters()
    }
