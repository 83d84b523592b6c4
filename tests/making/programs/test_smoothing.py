"""Smoothing changes nothing that float32 computes, and embeddings keep a scale for each row."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from app.contracts.errors import ExportError
from app.making.programs.derive import derive_int8, quantise_embeddings, smooth
from app.making.programs.onnx_graph import Graph
from app.models.repository.layout import ModelRepository
from tests.ran import ROOT, needs_converter

MODELS = ROOT / "model_repo"
CHANNELS, HIDDEN = 4, 6


def transformer() -> onnx.ModelProto:
    """Tokens, an embedding, a normalisation, a residual sum, and a product that is activated."""
    rng = np.random.default_rng(5)
    constants = {
        "table": rng.normal(size=(9, CHANNELS)) * np.array([[100.0], *[[1.0]] * 8]),
        "gamma": np.array([1.0, 50.0, 1.0, 0.1]),
        "beta": rng.normal(size=CHANNELS),
        "up": rng.normal(size=(CHANNELS, HIDDEN)),
        "down": rng.normal(size=(HIDDEN, CHANNELS)),
        "half": np.array(0.5),
    }
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"], "lookup"),
        helper.make_node("LayerNormalization", ["rows", "gamma", "beta"], ["norm"], "norm"),
        helper.make_node("MatMul", ["norm", "up"], ["wide"], "up"),
        helper.make_node("Mul", ["wide", "half"], ["active"], "active"),
        helper.make_node("MatMul", ["active", "down"], ["narrow"], "down"),
        helper.make_node("Add", ["narrow", "norm"], ["out"], "sum"),
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
    )


def outputs(model: onnx.ModelProto) -> np.ndarray:
    found: np.ndarray = ReferenceEvaluator(model).run(None, {"ids": np.arange(9)})[0]
    return found


def test_smoothing_divides_what_products_read_and_keeps_what_the_graph_computes() -> None:
    graph = Graph(transformer())
    smooth(graph, {"norm": (0.0, 5.64, 0.0, -3.0), "active": (1.0, 0.0, 0.5, 0.0, 2.0, -1.0)})
    model = graph.model()
    np.testing.assert_allclose(outputs(model), outputs(transformer()), rtol=1e-4)
    inputs = {node.name: list(node.input) for node in model.graph.node}
    assert inputs["up"][0] == "norm.smoothed"
    assert inputs["down"][0] == "active.smoothed"
    assert inputs["sum"] == ["narrow", "norm"], "the residual sum reads the unsmoothed value"


@pytest.mark.parametrize("exponents", [{"other": (0.0,)}, {"norm": (0.0, 1.0)}])
def test_factors_of_another_graph_are_refused(exponents: dict[str, tuple[float, ...]]) -> None:
    with pytest.raises(ExportError, match="another graph: no"):
        smooth(Graph(transformer()), exponents)


def test_a_large_row_of_an_embedding_costs_the_small_ones_nothing() -> None:
    graph = Graph(transformer())
    lookups = quantise_embeddings(graph)
    model = graph.model()
    kept = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    assert kept["table.int8"].dtype == np.int8
    assert "table" not in kept
    assert set(lookups) <= {node.name for node in model.graph.node if node.op_type == "Gather"}
    rows = kept["table.int8"] * kept["table.scale"]
    table = numpy_helper.to_array(transformer().graph.initializer[0])
    steps = np.abs(table).max(axis=1, keepdims=True) / 127
    assert (np.abs(rows - table) <= 0.51 * steps).all()
    outputs(model)


@needs_converter
@pytest.mark.paddle
@pytest.mark.slow
def test_the_committed_text_program_is_the_one_that_derive_makes() -> None:
    repository = ModelRepository(MODELS)
    files = repository.read("emotion", repository.versions("emotion")[0])
    derived = derive_int8(files)
    assert derived is not None
    [committed] = files.manifest.programs
    assert derived.entry.derivation == committed.derivation
    assert derived.entry.calibration == committed.calibration
    assert derived.content == (files.directory / committed.program).read_bytes()
