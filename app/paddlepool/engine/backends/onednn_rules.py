"""Operators that oneDNN computes wrongly or rejects, although Paddle 3.2.2 moves them to it.

Paddle's pass `onednn_placement_pass` moves about sixty kinds of operators to oneDNN, without
exception. For a program with one of the operators below, the pass is left out. What other passes
fuse (convolutions, linear layers) then still runs on oneDNN, and all else on Paddle's own kernels.

Two kinds of programs run on Paddle's own kernels alone (docs/decisions/0059): legacy programs with
such an operator, because they have no such pass to leave out; and programs with channels last, of
which oneDNN computes the fused operators wrongly as well.
"""

from collections.abc import Callable, Iterable, Mapping

from paddlepool.engine.backends.paddle_operators import FREE, Operator, Shape

LEFT_OUT = (
    "inplace_pass",
    "fc_activation_fuse_pass",
    "fc_act_onednn_fuse_pass",
    "softplus_activation_onednn_fuse_pass",
)
"""Passes that are left out for every program, which makes none slower. The first overwrites inputs
that are read again. The next two, one for PIR and one for legacy programs, drop one of two
activations after a linear layer. Paddle 3.2.2 cannot run what the last one writes."""
PLACEMENT = "onednn_placement_pass"

MAX_AXES = 5
SAME_THRESHOLD = 15.0
"""oneDNN's softplus has no threshold. With this or a higher one, float32 results are the same."""


def _resizes_otherwise(operator: Operator) -> bool:
    """Whether oneDNN may do this linear resampling differently from Paddle.

    oneDNN lacks `align_corners` and `align_mode` = 1. It computes the scale from the sizes, so a
    scale that is no integer, or is known only at run time, may differ.
    """
    attributes = operator.attributes
    option = attributes.get("align_corners") or attributes.get("align_mode") == 1
    fractional = any(scale != int(scale) for scale in attributes.get("scale") or ())
    return bool(option) or fractional or _scaled_at_run_time(operator)


def _samples_otherwise(operator: Operator) -> bool:
    """Whether oneDNN may do this nearest resampling differently from Paddle.

    Paddle rounds down and oneDNN to the nearest centre: results are equal only for integer scales.
    """
    if operator.attributes.get("align_corners") or _scaled_at_run_time(operator):
        return True
    if scales := operator.attributes.get("scale"):
        return any(scale < 1 or scale != int(scale) for scale in scales)
    before, after = operator.inputs[0], operator.outputs[0]
    if not before or not after or FREE in before[2:] + after[2:]:
        return True
    return any(new % old for old, new in zip(before[2:], after[2:], strict=True))


def _scaled_at_run_time(operator: Operator) -> bool:
    return len(operator.inputs) > 3 and operator.inputs[3] is not None


def _averages_otherwise(operator: Operator) -> bool:
    attributes = operator.attributes
    averages = attributes.get("pooling_type") == "avg" and not attributes.get("exclusive", True)
    return averages and bool(attributes.get("ceil_mode"))


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
"""Maps an operator's name to a function, which returns whether it must not run on oneDNN, and the
reason."""


def misplaced(operators: Iterable[Operator]) -> list[str]:
    """Return `name: reason`, sorted, for each kind of operator that must not run on oneDNN."""
    operators = list(operators)
    one_input = sum(operator.name in ("data", "feed") for operator in operators) == 1
    reasons = {}
    for operator in operators:
        name, shapes = operator.name, (*operator.inputs, *operator.outputs)
        affected, reason = RULES.get(name, (None, ""))
        if affected is not None and affected(operator):
            reasons[name] = reason
        elif name == "divide" and not _covers(*operator.inputs[:2], one_input=one_input):
            reasons[name] = "a dividend that may be broadcast"
        elif any(shape and len(shape) > MAX_AXES for shape in shapes):
            reasons[name] = f"more than {MAX_AXES} axes"
    return [f"{name}: {reason}" for name, reason in sorted(reasons.items())]


def reversed_layout(operators: Iterable[Operator]) -> bool:
    """Whether an operator has its channels last: oneDNN would move the axes of its output."""
    return any(operator.channels_last for operator in operators)


def _covers(dividend: Shape | None, divisor: Shape | None, *, one_input: bool) -> bool:
    """Whether the dividend is never broadcast to the divisor's shape; False if a shape is unknown.

    Free axes in the same position count as equal if they are the rows (axis 0), or if the
    program has only one input.
    """
    if dividend is None or divisor is None or len(divisor) > len(dividend):
        return False
    skipped = len(dividend) - len(divisor)
    return all(
        size == 1 or (size == other and (size != FREE or one_input or axis == skipped == 0))
        for axis, (size, other) in enumerate(zip(divisor, dividend[skipped:], strict=True))
    )
