"""A transformer in int8: a row never depends on other rows, and no sum of products saturates."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from paddlepool.making.programs.derive import derive_int8, quantise_embeddings
from paddlepool.making.programs.onnx_graph import Graph
from paddlepool.making.programs.qdq import quantise_by_rows
from paddlepool.models.repository.layout import ModelRepository
from tests.ran import ROOT, needs_converter
from tests.tiny_onnx import model as tiny_onnx

MODELS = ROOT / "model_repo"
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
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )


def outputs(model: onnx.ModelProto, *ids: int) -> np.ndarray:
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(model.SerializeToString())
    found: np.ndarray = session.run(None, {"ids": np.array(ids or range(9))})[0]
    return found


def by_rows(*products: str) -> onnx.ModelProto:
    graph = Graph(transformer())
    quantise_by_rows(graph, [node for node in graph.nodes if node.name in products])
    model = graph.model()
    onnx.checker.check_model(model)
    return model


def test_a_row_is_the_same_alone_and_beside_others() -> None:
    """The row of token 0 is much larger than the others."""
    model = by_rows("up", "beside", "down")
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
    graph = Graph(model)
    quantise_by_rows(graph, [node for node in graph.nodes if node.op_type == "MatMul"])
    np.testing.assert_array_equal(outputs(graph.model()), np.zeros((9, CHANNELS), np.float32))


@pytest.mark.parametrize("rows", [64, 65])
def test_two_neighbouring_products_fit_into_16_bits(rows: int) -> None:
    """A processor without VNNI adds them in 16 bits before it adds anything else."""
    rng = np.random.default_rng(rows)
    weights = rng.normal(size=(rows, 400)).astype(np.float32)
    weights[:, :100] = rng.choice([-1.0, 1.0], (rows, 100))
    weights[0, 100:200] = 30.0
    nodes = [helper.make_node("MatMul", ["x", "weights"], ["y"], "product")]
    sizes: tuple[list[int | str], list[int | str]] = (["N", rows], ["N", 400])
    constants = {"weights": weights}
    graph = Graph(
        tiny_onnx(nodes, inputs={"x": sizes[0]}, outputs={"y": sizes[1]}, constants=constants)
    )
    quantise_by_rows(graph, graph.nodes[:1])
    small = np.abs(graph.constants["weights.int8"].astype(int))
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
@pytest.mark.parametrize("version", ModelRepository(MODELS).versions("emotion"))
def test_the_committed_text_program_is_the_one_that_derive_makes(version: int) -> None:
    files = ModelRepository(MODELS).read("emotion", version)
    derived = derive_int8(files)
    assert derived is not None
    [committed] = files.manifest.programs
    assert derived.entry.derivation == committed.derivation
    assert derived.entry.calibration == committed.calibration
    assert derived.content == (files.directory / committed.program).read_bytes()
