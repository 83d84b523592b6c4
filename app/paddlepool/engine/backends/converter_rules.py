"""Operators that paddle2onnx 2.1 converts wrongly, or that make it end its process."""

from collections.abc import Callable, Iterable, Mapping

from paddlepool.engine.backends.paddle_operators import FREE, Operator

UNKNOWN = frozenset(
    [
        "acosh", "addmm", "amax", "amin", "asinh", "atanh", "bilinear", "celu", "channel_shuffle",
        "cross", "cummax", "cumprod", "diag_embed", "diagonal", "expm1", "fmax", "fmin",
        "full_batch_size_like", "kron", "kthvalue", "lerp", "logcumsumexp", "maxout", "median",
        "pixel_unshuffle", "searchsorted", "sequence_mask", "stanh", "trace", "trunc",
    ]
)  # fmt: skip
"""Operators that the converter does not know."""

INEXACT = "integers, computed as float32"


def _unlike_onnx_norm(operator: Operator) -> bool:
    """Whether a norm has order 0 or infinity (which PIR writes as None), or no axis."""
    order = operator.attributes.get("porder")
    infinite = order in (None, float("inf"), -float("inf"))
    return infinite or order == 0.0 or bool(operator.attributes.get("asvector"))


def _unlike_onnx_recurrence(operator: Operator) -> bool:
    attributes, used = operator.attributes, operator.used
    lengths = len(operator.inputs) > 3 and operator.inputs[3] is not None
    states = not used or (len(used) > 2 and used[2])
    layers_with_states = attributes.get("num_layers", 1) > 1 and states
    return lengths or attributes.get("mode") not in ("LSTM", "GRU") or layers_with_states


def _uneven_pooling(operator: Operator) -> bool:
    """Whether this is adaptive pooling to several positions, with windows that may differ in size.

    They may differ if an input size is free or is no multiple of the output size.
    """
    before, after = operator.inputs[0], operator.outputs[0]
    if not operator.attributes.get("adaptive") or not before or not after:
        return False
    sizes = list(zip(before[2:], after[2:], strict=True))
    multiple = any(new != 1 for _, new in sizes)
    return multiple and any(old == FREE or old % new for old, new in sizes)


def _several_axes(operator: Operator) -> bool:
    shape = operator.inputs[0]
    return shape is not None and operator.attributes.get("begin_norm_axis") != len(shape) - 1


def _free_flip(operator: Operator) -> bool:
    shape = operator.inputs[0]
    return shape is None or any(shape[axis] == FREE for axis in operator.attributes["axis"])


RULES: Mapping[str, tuple[Callable[[Operator], bool], str]] = {
    "hardtanh": (
        lambda op: (op.attributes.get("t_min"), op.attributes.get("t_max")) != (-1.0, 1.0),
        "bounds other than -1 and 1",
    ),
    "p_norm": (_unlike_onnx_norm, "an order of 0 or infinity, or no axis"),
    "rnn": (_unlike_onnx_recurrence, "lengths, states of several layers, or a plain cell"),
    "pool2d": (_uneven_pooling, "an adaptive size that does not divide the input's"),
    "max_pool2d_with_index": (_uneven_pooling, "an adaptive size that does not divide the input's"),
    "layer_norm": (_several_axes, "several axes"),
    "softplus": (
        lambda op: (
            op.attributes.get("beta", 1.0) != 1.0 or op.attributes.get("threshold", 20.0) != 20.0
        ),
        "beta other than 1, or a threshold other than 20",
    ),
    # Written as Log(Sigmoid(x)); ONNX Runtime's sigmoid is off by 1e-7, and 0 below -18.
    "logsigmoid": (lambda _: True, "wrong below -10, infinite below -18"),
    "atan2": (lambda _: True, "NaN for two zeros"),
    "flip": (_free_flip, "an axis of free size"),
    "floor_divide": (lambda operator: operator.integer, INEXACT),
    **dict.fromkeys(
        ("dot", "fft_c2c", "fft_c2r", "fft_r2c", "repeat_interleave"),
        (lambda _: True, "wrong in every form"),
    ),
    **dict.fromkeys(UNKNOWN, (lambda _: True, "not known to the converter")),
}
"""Maps an operator's name to a function, which returns whether the converter gets it wrong, and the
reason."""


def unconvertible(operators: Iterable[Operator]) -> list[str]:
    """Return `name: reason`, sorted, for each kind of operator that is not converted correctly."""
    operators = list(operators)
    reasons: dict[str, str] = {}
    # Positions in a text are small enough for float32; integers that are outputs may not be.
    if any(operator.name == "fetch" and operator.integer for operator in operators):
        reasons |= {op.name: INEXACT for op in operators if op.name == "scale" and op.integer}
    for operator in operators:
        affected, reason = RULES.get(operator.name, (None, ""))
        if affected is not None and affected(operator):
            reasons[operator.name] = reason
        elif operator.channels_last:
            reasons[operator.name] = "channels last"
    return [f"{name}: {reason}" for name, reason in sorted(reasons.items())]
