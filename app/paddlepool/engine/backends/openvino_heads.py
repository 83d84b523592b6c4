"""Computes the last layers of a segmentation head before they enlarge the picture.

The head of PaddleOCR's detectors doubles the sides of its input twice, each time with a transposed
convolution whose kernel does not overlap. OpenVINO 2026.4 computes them, and the operators around
them, in float32 even in a bfloat16 program, on up to 16 times as many pixels.

Such a convolution is a product for each pixel (a 1 x 1 convolution), followed by a move of channels
to pixels (DepthToSpace). Everything after the first product works on single pixels, too. So all of
it can come before the move. The second product then has zeros for the other pixels of a block.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
AXES = 4
"""Number of axes of a picture: (batch, channels, height, width)."""
UNKNOWN: Floats = np.empty(0, np.float32)
"""Stands for a value that is not constant, or not one for each channel."""
MOST_TIMES = 2
"""Largest stride of the first convolution. The second product multiplies by this number squared as
many weights, most of them 0."""


def move_before_enlarging(model: Any) -> bool:
    """Change a model that ends with such a head; return whether it does.

    The head is: transposed convolution, bias, batch norm, ReLU, transposed convolution, bias,
    sigmoid. Bias, batch norm and sigmoid may be missing. Both convolutions have constant weights,
    equal strides and kernels, and one group. Other models stay as they are.
    """
    from openvino import opset13 as opset

    results = model.get_results()
    if len(results) != 1:
        return False
    [result] = results
    last = _operator(result)
    sigmoid = last.get_type_name() == "Sigmoid"
    second, scale, shift = _affine(_operator(last) if sigmoid else last)
    if not _enlarges(second) or (relu := _operator(second)).get_type_name() != "Relu":
        return False
    first, factor, offset = _affine(_operator(relu))
    if not _enlarges(first):
        return False
    weights, kernel = (conv.input_value(1).get_node().get_data() for conv in (first, second))
    channels, times, further = weights.shape[1], weights.shape[2], kernel.shape[2]
    sizes = ((factor, channels), (offset, channels), (scale, 1), (shift, 1))
    if (
        times > MOST_TIMES
        or kernel.shape[1] != 1
        or any(values.size not in (1, size) for values, size in sizes)
    ):
        return False
    pixels, side = times * times, times * further
    # The channels of the first product: all channels of one pixel, then those of the next.
    product = (weights * np.broadcast_to(factor, channels)[:, None, None]).transpose(2, 3, 1, 0)
    bias = np.tile(np.broadcast_to(offset, channels), pixels)
    # Each pixel of the first product gives further x further pixels, in rows of the whole block.
    block = np.zeros((times, further, times, further, times, times, channels), np.float32)
    for row in range(times):
        for column in range(times):
            block[row, :, column, :, row, column] = (kernel[:, 0] * scale).transpose(1, 2, 0)

    def convolution(data: Any, values: Floats, inputs: int) -> Any:
        values = np.ascontiguousarray(values.reshape(-1, inputs, 1, 1), np.float32)
        return opset.convolution(data, opset.constant(values), [1, 1], [0, 0], [0, 0], [1, 1])

    def added(data: Any, values: Floats) -> Any:
        return opset.add(data, opset.constant(values.reshape(1, -1, 1, 1).astype(np.float32)))

    data = convolution(first.input_value(0), product, weights.shape[0])
    data = opset.relu(added(data, bias))
    data = added(convolution(data, block, pixels * channels), shift)
    data = opset.sigmoid(data) if sigmoid else data
    data = opset.depth_to_space(data, "blocks_first", side)
    data.set_friendly_name(last.get_friendly_name())
    data.output(0).set_names(last.output(0).get_names())
    result.input(0).replace_source_output(data.output(0))
    model.validate_nodes_and_infer_types()
    return True


def _operator(op: Any) -> Any:
    """Return the operator of the first input, past operators that change nothing."""
    op = op.input_value(0).get_node()
    while op.get_type_name() == "Identity":
        op = op.input_value(0).get_node()
    return op


def _constant(op: Any, place: int) -> Floats:
    """Return a constant input, also if it is reshaped; UNKNOWN for another."""
    source = op.input_value(place).get_node()
    if source.get_type_name() == "Reshape":
        source = source.input_value(0).get_node()
    return source.get_data() if source.get_type_name() == "Constant" else UNKNOWN


def _by_channel(add: Any) -> Floats:
    """Return the constant that is added, if it has a number for each channel or one for all.

    Returns UNKNOWN for another.
    """
    shape = add.input_value(1).get_partial_shape()
    if shape.is_dynamic or len(shape) > AXES:
        return UNKNOWN
    batch, _, *sides = [1] * (AXES - len(shape)) + list(shape.to_shape())
    return _constant(add, 1).reshape(-1) if [batch, *sides] == [1, 1, 1] else UNKNOWN


def _affine(op: Any) -> tuple[Any, Floats, Floats]:
    """Return the operator before a chain of Add and batch norms, and the chain's factor and offset.

    Both have a number for each channel, or one for all, or are UNKNOWN.
    """
    steps = list(_chain(op))
    if steps:
        op = _operator(steps[-1])
    factor, offset = np.ones(1, np.float32), np.zeros(1, np.float32)
    for step in reversed(steps):
        adds = step.get_type_name() == "Add"
        places = range(1, 5)
        values = [_by_channel(step)] if adds else [_constant(step, place) for place in places]
        sizes = {numbers.size for numbers in (*values, factor, offset)} - {1}
        if 0 in sizes or len(sizes) > 1:
            return op, UNKNOWN, UNKNOWN
        if adds:
            offset = offset + values[0]
            continue
        gamma, beta, mean, variance = values
        scale = gamma / np.sqrt(variance + step.get_attributes()["epsilon"])
        factor, offset = factor * scale, (offset - mean) * scale + beta
    return op, factor, offset


def _chain(op: Any) -> Iterator[Any]:
    while op.get_type_name() in ("Add", "BatchNormInference"):
        yield op
        op = _operator(op)


def _enlarges(op: Any) -> bool:
    """Whether an operator is a transposed convolution of pictures whose kernel does not overlap."""
    if op.get_type_name() != "ConvolutionBackpropData" or op.get_input_size() != 2:
        return False
    source, attributes = op.input_value(1).get_node(), op.get_attributes()
    if source.get_type_name() != "Constant":
        return False
    weights = source.get_data()
    if weights.ndim != AXES or weights.dtype != np.float32:
        return False
    tall, wide = weights.shape[2:]
    unused = ("pads_begin", "pads_end", "output_padding")
    return (
        tall == wide
        and list(attributes["strides"]) == [tall, wide]
        and list(attributes["dilations"]) == [1, 1]
        and not any(any(attributes[name]) for name in unused)
        and attributes["auto_pad"] in ("explicit", "notset", "valid")
    )
