"""Finds the best class of each step of a line of text among padded classes.

The 18,385 classes of PP-OCRv5 have no divisor but 5 and 3,677, so TopK, which looks at one class
after the other, would have to look at 3,682 for each step.
"""

from copy import deepcopy

import numpy as np
import onnx
from onnx import TensorProto, helper

from paddlepool.making.programs.onnx_graph import Graph

OPSET = 18
"""Since this version, the axes of reductions are an input."""
PARTS = 128
LOWEST = -1e4
"""Logit of a class that does not exist; exp() of it is 0."""


def pad_classes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a simplified() recogniser that returns the same in less time.

    Its outputs must be the best class of each step (int32) and the score of that class, computed by
    a softmax of a matrix product with a bias, and its opset at least OPSET; another model is
    returned as it is. The classes are padded to PARTS equal parts. The score is
    1 / sum(exp(logit - best logit)), which needs fewer passes over the classes than a softmax.
    """
    graph = Graph(deepcopy(model))
    softmax = [node for node in graph.nodes if node.op_type == "Softmax"][-1:]
    add = graph.maker(softmax[0].input[0]) if softmax else None
    product = graph.maker(add.input[0]) if add is not None and add.op_type == "Add" else None
    kinds = [output.type.tensor_type.elem_type for output in model.graph.output]
    opset = max((entry.version for entry in graph.opsets if not entry.domain), default=0)
    if (
        kinds != [TensorProto.INT32, TensorProto.FLOAT]
        or add is None
        or product is None
        or opset < OPSET
    ):
        return model
    weight, bias = product.input[-1], add.input[1]
    if product.op_type != "MatMul" or not {weight, bias} <= graph.constants.keys():
        return model
    count = len(graph.constants[bias])
    size = -(-count // PARTS)
    missing = (0, size * PARTS - count)
    constants = {
        weight: np.pad(graph.constants[weight], ((0, 0), missing)),
        bias: np.pad(graph.constants[bias], missing, constant_values=LOWEST),
        "best.shape": np.array([0, 0, PARTS, size]),
        "best.one": np.array([1]),
        "best.last": np.array([-1]),
        "best.axes": np.array([-2, -1]),
        "best.size": np.array([size]),
        "best.parts": np.array([PARTS]),
        "best.rows": np.array([-1, size]),
        "best.zero": np.array(0),
        "best.next": np.array(1),
    }
    graph.constants |= constants
    classes, scores = graph.outputs
    logits = add.output[0]
    graph.nodes = [
        *graph.nodes[: graph.nodes.index(add) + 1],
        *(
            helper.make_node(kind, inputs, outputs, f"{outputs[0]}.node", **options)
            for kind, inputs, outputs, options in (
                ("Reshape", [logits, "best.shape"], ["best.divided"], {}),
                ("ReduceMax", ["best.divided", "best.last"], ["best.maxima"], {"keepdims": 0}),
                ("TopK", ["best.maxima", "best.one"], ["best.largest", "best.part"], {}),
                # GatherND would copy all classes first, because OpenVINO broadcasts its input.
                ("Reshape", ["best.part", "best.last"], ["best.places"], {}),
                ("Size", ["best.places"], ["best.count"], {}),
                ("Range", ["best.zero", "best.count", "best.next"], ["best.numbers"], {}),
                ("Mul", ["best.numbers", "best.parts"], ["best.starts"], {}),
                ("Add", ["best.starts", "best.places"], ["best.chosen"], {}),
                ("Reshape", ["best.divided", "best.rows"], ["best.all"], {}),
                ("Gather", ["best.all", "best.chosen"], ["best.row"], {"axis": 0}),
                ("TopK", ["best.row", "best.one"], ["best.again", "best.within"], {}),
                ("Shape", ["best.part"], ["best.like"], {}),
                ("Reshape", ["best.within", "best.like"], ["best.offset"], {}),
                ("Mul", ["best.part", "best.size"], ["best.first"], {}),
                ("Add", ["best.first", "best.offset"], ["best.class"], {}),
                ("Squeeze", ["best.class", "best.last"], ["best.classes"], {}),
                ("Cast", ["best.classes"], [classes], {"to": TensorProto.INT32}),
                ("Unsqueeze", ["best.largest", "best.last"], ["best.top"], {}),
                ("Sub", ["best.divided", "best.top"], ["best.below"], {}),
                ("Exp", ["best.below"], ["best.shares"], {}),
                ("ReduceSum", ["best.shares", "best.axes"], ["best.sum"], {"keepdims": 0}),
                ("Reciprocal", ["best.sum"], [scores], {}),
            )
        ),
    ]
    done = graph.model()
    onnx.checker.check_model(done)
    return done
