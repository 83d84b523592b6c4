"""The search finds the layer under which int8 collapses, without being told."""

import numpy as np
import onnx
import pytest

from paddlepool.making.programs.derive import differences
from paddlepool.making.programs.qdq import Activation, Ranges, find_float_layers
from tests.making.programs.networks import named, planted

LAYERS = [f"{stage}.{name}" for stage in ("in", "middle", "out") for name in ("a", "b")]


def samples() -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(4)
    return [{"x": random.random((1, 4, 8, 8)).astype(np.float32)} for _ in range(3)]


def ranges_of(network: onnx.ModelProto) -> Ranges:
    """In seven bits: products of eight-bit numbers saturate on a processor without VNNI."""
    onnxruntime = pytest.importorskip("onnxruntime")
    readers = {n.input[0]: n.name for n in network.graph.node if n.name in LAYERS}
    watched = onnx.ModelProto.FromString(network.SerializeToString())
    watched.graph.output.extend(
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
        for name in readers
        if name != "x"
    )
    session = onnxruntime.InferenceSession(watched.SerializeToString())
    names = [output.name for output in session.get_outputs()]
    runs = [dict(zip(names, session.run(None, x), strict=True)) | x for x in samples()]
    return Ranges(
        activations=tuple(
            Activation(
                value=value,
                scale=float(max(run[value].max() for run in runs)) / 127,
                zero_point=0,
                signed=False,
                readers=(layer,),
            )
            for value, layer in readers.items()
        ),
        float_layers=(),
    )


def found_in(network: onnx.ModelProto) -> tuple[Ranges, dict[str, float]]:
    """What the search for a loss of 0.01 finds, and the losses it has shown."""
    pytest.importorskip("openvino")
    seen: dict[str, float] = {}
    loss_of = differences(network, samples())
    ranges = ranges_of(network)
    return find_float_layers(network, ranges, 0.01, loss_of=loss_of, show=seen.__setitem__), seen


def test_the_planted_layer_is_found() -> None:
    """By its stage first, then alone: everything else becomes int8."""
    ranges, seen = found_in(named(planted("middle.b")))
    assert ranges.float_layers == ("middle.b",)
    assert next(iter(seen)) == "everything"
    last, loss = seen.popitem()
    assert (last, loss <= 0.01) == ("float: middle.b", True)
    assert "only middle" in seen
    assert "only in.a" not in seen  # its stage loses nothing


def test_nothing_stays_float_where_nothing_collapses() -> None:
    ranges, seen = found_in(named(planted(None)))
    assert (ranges.float_layers, len(seen)) == ((), 1)


def test_if_no_float_layer_mends_the_loss_all_become_float() -> None:
    network = named(planted("middle.b"))
    x = Activation(value="x", scale=1.0, zero_point=0, signed=False, readers=("in.a",))
    ranges = Ranges(activations=(x,), float_layers=())
    found = find_float_layers(
        network, ranges, 0.01, loss_of=lambda _model: 0.5, show=lambda _what, _loss: None
    )
    assert sorted(found.float_layers) == sorted(LAYERS)
