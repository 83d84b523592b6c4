"""The operators that paddle2onnx 2.1 converts wrongly, or ends its process for."""

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


INEXACT = "integers, computed as float32"


def _other_bounds(operator: Operator) -> bool:
    given = operator.attributes
    return (given.get("t_min"), given.get("t_max")) != (-1.0, 1.0)


def _other_norm(operator: Operator) -> bool:
    """PIR writes an infinite order as no number."""
    given = operator.attributes
    order = given.get("porder")
    return order in (None, 0.0, float("inf"), -float("inf")) or bool(given.get("asvector"))


def _other_recurrence(operator: Operator) -> bool:
    given = operator.attributes
    lengths = len(operator.inputs) > 3 and operator.inputs[3] is not None
    states = not operator.used or (len(operator.used) > 2 and operator.used[2])
    return (
        lengths
        or given.get("mode") not in ("LSTM", "GRU")
        or (given.get("num_layers", 1) > 1 and states)
    )


def _uneven(operator: Operator) -> bool:
    """Adaptive pooling to more than one place whose windows are not all the same."""
    before, after = operator.inputs[0], operator.outputs[0]
    if not operator.attributes.get("adaptive") or not before or not after:
        return False
    sizes = list(zip(before[2:], after[2:], strict=True))
    if all(new == 1 for _, new in sizes):
        return False
    return any(old == FREE or old % new for old, new in sizes)


def _several_axes(operator: Operator) -> bool:
    shape = operator.inputs[0]
    return shape is not None and operator.attributes.get("begin_norm_axis") != len(shape) - 1


def _other_softplus(operator: Operator) -> bool:
    given = operator.attributes
    return (given.get("beta", 1.0), given.get("threshold", 20.0)) != (1.0, 20.0)


def _free_flip(operator: Operator) -> bool:
    shape = operator.inputs[0]
    return shape is None or any(shape[axis] == FREE for axis in operator.attributes["axis"])


RULES: Mapping[str, tuple[Callable[[Operator], bool], str]] = {
    "hardtanh": (_other_bounds, "bounds other than -1 and 1"),
    "p_norm": (_other_norm, "an order of 0 or infinity, or no axis"),
    "rnn": (_other_recurrence, "lengths, states of several layers, or a plain cell"),
    "pool2d": (_uneven, "an adaptive size that does not divide the input's"),
    "max_pool2d_with_index": (_uneven, "an adaptive size that does not divide the input's"),
    "layer_norm": (_several_axes, "several axes"),
    "softplus": (_other_softplus, "beta other than 1, or a threshold other than 20"),
    "flip": (_free_flip, "an axis of free size"),
    "floor_divide": (lambda operator: operator.integer, INEXACT),
    **{
        name: (lambda _: True, "wrong in every form")
        for name in ("dot", "fft_c2c", "fft_c2r", "fft_r2c", "repeat_interleave")
    },
    **{name: (lambda _: True, "not known to the converter") for name in UNKNOWN},
}
"""By operator: whether it is affected, and what affects it."""


def unconvertible(operators: Iterable[Operator]) -> list[str]:
    """Return a reason for each kind of operator that cannot be converted rightly."""
    operators = list(operators)
    found: dict[str, str] = {}
    # Positions in a text are small enough for float32; integers that are answers may not be.
    if any(each.name == "fetch" and each.integer for each in operators):
        found |= {each.name: INEXACT for each in operators if each.name == "scale" and each.integer}
    for each in operators:
        affected, reason = RULES.get(each.name, (None, ""))
        if affected is not None and affected(each):
            found[each.name] = reason
        elif each.channels_last:
            found[each.name] = "channels last"
    return [f"{name}: {reason}" for name, reason in sorted(found.items())]
