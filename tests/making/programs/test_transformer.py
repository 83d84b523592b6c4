"""A transformer in int8: a row never depends on other rows, and no sum of products saturates."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from paddlepool.making.programs.derive import derive_int8
from paddlepool.making.programs.onnx_graph import Graph
from paddlepool.making.programs.qdq import LEVELS, quantised_weight
from paddlepool.making.programs.transformer import (
    DOMAIN,
    Range,
    measured_ranges,
    quantise_embeddings,
    quantise_products,
)
from paddlepool.models.repository.layout import ModelRepository
from tests.ran import ROOT, needs_converter
from tests.tiny_onnx import model as tiny_onnx

MODELS = ROOT / "model_repo"
NEWEST, *OLDER = ModelRepository(MODELS).versions("emotion")
CHANNELS, HIDDEN = 5, 6


def transformer() -> onnx.ModelProto:
    """Tokens, an embedding, a normalisation, two products that read it, and a residual sum."""
    rng = np.random.default_rng(5)
    constants = {
        "table": rng.normal(size=(9, CHANNELS)) * np.array([[100.0], *[[1.0]] * 8]),
        "gamma": np.array([1.0, 3.0, 1.0, 0.1, 1.0]),
        "beta": rng.normal(size=CHANNELS),
        "up": rng.normal(size=(CHANNELS, HIDDEN)),
        "beside": rng.normal(size=(CHANNELS, CHANNELS)),
        "down": rng.normal(size=(HIDDEN, CHANNELS)),
    }
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"], "lookup"),
        helper.make_node("LayerNormalization", ["rows", "gamma", "beta"], ["norm"], "norm"),
        helper.make_node("MatMul", ["norm", "up"], ["wide"], "up"),
        helper.make_node("MatMul", ["norm", "beside"], ["same"], "beside"),
        helper.make_node("Relu", ["wide"], ["active"], "active"),
        helper.make_node("MatMul", ["active", "down"], ["narrow"], "down"),
        helper.make_node("Sum", ["narrow", "norm", "same"], ["out"], "sum"),
    ]
    return helper.make_model(
        helper.make_graph(
            nodes,
            "transformer",
            [helper.make_tensor_value_info("ids", TensorProto.INT64, [None])],
            [helper.make_tensor_value_info("out", TensorProto.FLOAT, [None, CHANNELS])],
            [numpy_helper.from_array(x.astype(np.float32), name) for name, x in constants.items()],
        ),
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)],
        ir_version=8,
    )


def outputs(model: onnx.ModelProto, *ids: int) -> np.ndarray:
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(model.SerializeToString())
    found: np.ndarray = session.run(None, {"ids": np.array(ids or range(9))})[0]
    return found


def quantised(
    network: onnx.ModelProto, *products: str, length: int = 1, least: float = -9.0
) -> onnx.ModelProto:
    """With one scale for the normalised values if `length` is above 1."""
    graph = Graph(network)
    ranges = dict.fromkeys(("norm", "active", "x"), Range(least, 6.0, length))
    quantise_products(graph, [node for node in graph.nodes if node.name in products], ranges)
    model = graph.model()
    onnx.checker.check_model(model)
    return model


def product(values: np.ndarray, weights: np.ndarray, *, least: float) -> np.ndarray:
    """Values times weights, as the quantised program computes it."""
    network = tiny_onnx(
        [helper.make_node("MatMul", ["x", "weights"], ["y"], "product")],
        inputs={"x": ["N", values.shape[1]]},
        outputs={"y": ["N", weights.shape[1]]},
        constants={"weights": weights.astype(np.float32)},
    )
    network.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    model = quantised(network, "product", least=least)
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(model.SerializeToString())
    found: np.ndarray = session.run(None, {"x": values.astype(np.float32)})[0]
    return found


@pytest.mark.parametrize("length", [1, 2])
def test_a_row_is_the_same_alone_and_beside_others(length: int) -> None:
    """The row of token 0 is much larger than the others."""
    model = quantised(transformer(), "up", "beside", "down", length=length)
    constants = Graph(model).constants
    eight_bit = {n for n, a in constants.items() if a.ndim == 2 and a.dtype == np.int8}
    assert eight_bit == {"up.int8", "beside.int8", "down.int8"}
    together = outputs(model)
    for token in range(9):
        np.testing.assert_array_equal(outputs(model, token)[0], together[token])
    expected = outputs(transformer())
    assert np.abs(together - expected).max() <= 0.03 * np.abs(expected).max()


def test_a_row_of_zeros_stays_zeros() -> None:
    """Its largest value divides it."""
    model = transformer()
    kept = {tensor.name: tensor for tensor in model.graph.initializer}
    for name in ("gamma", "beta"):
        kept[name].CopyFrom(numpy_helper.from_array(np.zeros(CHANNELS, np.float32), name))
    model = quantised(model, "up", "beside", "down")
    np.testing.assert_array_equal(outputs(model), np.zeros((9, CHANNELS), np.float32))


def test_normalised_values_have_one_scale_and_their_bias_is_added_in_the_product() -> None:
    network = transformer()
    network.graph.initializer.append(
        numpy_helper.from_array(np.array([5, -4, 3, 2, 1], np.float32), "bias")
    )
    network.graph.node[3].output[0] = "unbiased"
    network.graph.node.insert(4, helper.make_node("Add", ["unbiased", "bias"], ["same"], "bias"))
    expected = outputs(network)
    model = quantised(network, "up", "beside", length=2)
    assert [node.op_type for node in model.graph.node].count("QuantizeLinear") == 1
    assert not {"Add", "Abs"}.intersection(node.op_type for node in model.graph.node)
    [biased] = [node for node in model.graph.node if "bias" in node.input]
    assert biased.name == "beside"
    found = outputs(model)
    assert 0 < np.abs(found - expected).max() <= 0.03 * np.abs(expected).max()


def test_what_an_activation_function_makes_has_finer_steps_and_keeps_its_least_values() -> None:
    """GELU is never below -0.17, so most of the 256 numbers can be above 0."""
    values = np.array([[-0.17, 0.003, 0.6, 1.2], [-0.17, 7.0, 14.0, -0.1]])
    for least, step in ((-0.17, 223), (-0.3, 127)):
        found = product(values, np.eye(4), least=least)
        sizes = np.maximum(np.abs(values).max(axis=1, keepdims=True), 1.19)
        assert (np.abs(found - values) <= 0.505 * sizes / step).all()
    assert (np.abs(product(values, np.eye(4), least=-0.3) - values) > 0.5 * sizes / 223).any()


def test_the_range_of_a_value_covers_all_of_a_run() -> None:
    network = transformer()
    table = numpy_helper.to_array(network.graph.initializer[0])
    ranges = measured_ranges(network, ["rows", "active"], {"ids": np.arange(9)})
    assert ranges["rows"] == Range(table.min(), np.abs(table).max(), CHANNELS)
    assert ranges["active"].least == 0
    assert [value.name for value in network.graph.output] == ["out"]


@pytest.mark.parametrize("rows", [64, 65])
def test_two_neighbouring_products_fit_into_16_bits(rows: int) -> None:
    """A processor without VNNI adds them in 16 bits before it adds anything else."""
    rng = np.random.default_rng(rows)
    weights = rng.normal(size=(rows, 400)).astype(np.float32)
    weights[:, :100] = rng.choice([-1.0, 1.0], (rows, 100))
    weights[0, 100:200] = 30.0
    quantised_form, _ = quantised_weight(weights, axis=1, levels=LEVELS, pairs=True)
    small = np.abs(quantised_form.astype(int))
    pairs = small[: rows - rows % 2].reshape(-1, 2, 400).sum(axis=1)
    assert pairs.max() == 128
    assert small.max() == 127
    assert pairs.max() * 255 <= np.iinfo(np.int16).max
    assert np.median(small.max(axis=0)) > 64, "seven bits would be coarser"


def test_a_large_row_of_an_embedding_costs_the_small_ones_nothing() -> None:
    graph = Graph(transformer())
    quantise_embeddings(graph)
    model = graph.model()
    constants = Graph(model).constants
    assert constants["table.int8"].dtype == np.int8
    assert "table" not in constants
    rows = constants["table.int8"] * constants["table.scale"]
    table = numpy_helper.to_array(transformer().graph.initializer[0])
    steps = np.abs(table).max(axis=1, keepdims=True) / 127
    assert (np.abs(rows - table) <= 0.51 * steps).all()
    outputs(model)


@needs_converter
@pytest.mark.paddle
@pytest.mark.slow
@pytest.mark.parametrize(
    "version", [NEWEST, *(pytest.param(older, marks=pytest.mark.nightly) for older in OLDER)]
)
def test_the_committed_text_program_is_the_one_that_derive_makes(version: int) -> None:
    files = ModelRepository(MODELS).read("emotion", version)
    derived = derive_int8(files)
    assert derived is not None
    [committed] = files.manifest.programs
    assert derived.entry.derivation == committed.derivation
    assert derived.entry.calibration == committed.calibration
    assert derived.content == (files.directory / committed.program).read_bytes()
