"""The operators that oneDNN computes wrongly, or refuses, where Paddle 3.2.2 places them there.

Paddle's pass `onednn_placement_pass` moves about sixty kinds of operators to oneDNN and knows no
exception. For a program with one of the operators below, the pass is left out. What other passes
fuse (convolutions, linear layers) then still runs on oneDNN, and all else on Paddle's own kernels.
A legacy program has no such choice, and channels last are wrong in what is fused, too: these run on
Paddle's own kernels alone (docs/decisions/0059).
"""

from collections.abc import Callable, Iterable, Mapping

from paddlepool.engine.backends.paddle_operators import FREE, Operator, Shape

LEFT_OUT = (
    "inplace_pass",
    "fc_activation_fuse_pass",
    "fc_act_onednn_fuse_pass",
    "softplus_activation_onednn_fuse_pass",
)
"""Passes that are left out for every program, which costs nothing. The first overwrites inputs that
are read again; the next two, in PIR and in legacy programs, drop one of two activations after a
linear layer; what the last one writes, Paddle 3.2.2 cannot run."""
PLACEMENT = "onednn_placement_pass"

MAX_AXES = 5
SAME_THRESHOLD = 15.0
"""oneDNN's softplus has no threshold; above this one, that makes no difference in float32."""


def _resizes_otherwise(operator: Operator) -> bool:
    """oneDNN's linear resampling takes the scale from the sizes, and knows neither option."""
    given = operator.attributes
    if given.get("align_corners") or given.get("align_mode") == 1 or _scaled_at_run_time(operator):
        return True
    return any(scale != int(scale) for scale in given.get("scale") or ())


def _samples_otherwise(operator: Operator) -> bool:
    """oneDNN takes the nearest centre, Paddle the floor: the same if each size is multiplied."""
    given = operator.attributes
    if given.get("align_corners") or _scaled_at_run_time(operator):
        return True
    if scales := given.get("scale"):
        return any(scale < 1 or scale != int(scale) for scale in scales)
    before, after = operator.inputs[0], operator.outputs[0]
    if not before or not after or FREE in before[2:] + after[2:]:
        return True
    return any(new % old for old, new in zip(before[2:], after[2:], strict=True))


def _scaled_at_run_time(operator: Operator) -> bool:
    return len(operator.inputs) > 3 and operator.inputs[3] is not None


def _averages_otherwise(operator: Operator) -> bool:
    given = operator.attributes
    averages = given.get("pooling_type") == "avg" and not given.get("exclusive", True)
    return averages and bool(given.get("ceil_mode"))


def _normalises_several_axes(operator: Operator) -> bool:
    shape = operator.inputs[0]
    return shape is None or operator.attributes.get("begin_norm_axis") != len(shape) - 1


RULES: Mapping[str, tuple[Callable[[Operator], bool], str]] = {
    "bilinear_interp": (_resizes_otherwise, "align_corners, align_mode = 1 or a fractional scale"),
    "nearest_interp": (_samples_otherwise, "sizes that are not multiplied by integers"),
    "pool2d": (_averages_otherwise, "an average with ceil_mode that counts the padding"),
    "softplus": (
        lambda operator: operator.attributes.get("threshold", 20.0) < SAME_THRESHOLD,
        "a low threshold",
    ),
    "layer_norm": (_normalises_several_axes, "several axes"),
    "pad": (lambda _: True, "padding of every axis"),
}
"""By operator: whether it is affected, and what affects it."""


def misplaced(operators: Iterable[Operator]) -> list[str]:
    """Return a reason for each kind of operator that must not be placed on oneDNN."""
    operators = list(operators)
    one_input = sum(each.name in ("data", "feed") for each in operators) == 1
    reasons = {}
    for each in operators:
        affected, reason = RULES.get(each.name, (None, ""))
        if affected is not None and affected(each):
            reasons[each.name] = reason
        elif each.name == "divide" and not _covers(each.inputs[0], each.inputs[1], one_input):
            reasons[each.name] = "a dividend that may be broadcast"
        elif any(shape and len(shape) > MAX_AXES for shape in (*each.inputs, *each.outputs)):
            reasons[each.name] = f"more than {MAX_AXES} axes"
    return [f"{name}: {reason}" for name, reason in sorted(reasons.items())]


def reversed_layout(operators: Iterable[Operator]) -> bool:
    """Tell whether an operator has its channels last: oneDNN would move the axes of its output."""
    return any(each.channels_last for each in operators)


def _covers(dividend: Shape | None, divisor: Shape | None, one_input: bool) -> bool:
    """Tell whether the divisor is broadcast to the dividend, if anything is.

    Free axes at the same place are taken for equal if they are the rows, or if all free axes come
    from one input.
    """
    if dividend is None or divisor is None or len(divisor) > len(dividend):
        return False
    skipped = len(dividend) - len(divisor)
    return all(
        one == 1 or (one == other and (one != FREE or one_input or place == skipped == 0))
        for place, (one, other) in enumerate(zip(divisor, dividend[skipped:], strict=True))
    )
