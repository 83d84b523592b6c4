"""BERT against Hugging Face transformers, in both forms, and the committed program."""

import json
from pathlib import Path

import numpy as np
import paddle
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from paddlepool.contracts.tensors import TensorSpec
from paddlepool.making.export.exporter import save_program
from paddlepool.making.export.weights import read_bert_directory
from paddlepool.models.networks import build, load_parameters
from tests.models.networks.conftest import FIXTURES

pytestmark = pytest.mark.paddle
LIMIT = 1e-4
TINY = FIXTURES / "tiny_bert"
TRAINED = Path(__file__).parents[3] / "model_repo" / "emotion" / "1"
Ids = NDArray[np.int64]


def served(directory: Path, *, static: bool) -> paddle.nn.Layer:
    bert = read_bert_directory(directory)
    network = build("bert", bert.options, static=static)
    network.set_state_dict({name: paddle.to_tensor(value) for name, value in bert.state.items()})
    network.eval()
    return network


def logits(network: paddle.nn.Layer, ids: Ids, mask: Ids) -> NDArray[np.float32]:
    with paddle.no_grad():
        result: NDArray[np.float32] = network(paddle.to_tensor(ids), paddle.to_tensor(mask)).numpy()
    return result


@pytest.mark.parametrize("static", [False, True], ids=["dynamic", "exported form"])
def test_golden_logits_of_transformers(static: bool) -> None:
    with np.load(TINY / "expected.npz", allow_pickle=False) as golden:
        ids, mask, expected = (golden[k] for k in ("input_ids", "attention_mask", "logits"))
    assert np.abs(expected - logits(served(TINY, static=static), ids, mask)).max() <= LIMIT
    assert np.ptp(expected) > 0.5, "equal logits would prove little"


def test_the_served_version_is_the_exported_form(tmp_path: Path) -> None:
    """Exported again, its parameters give the committed program."""
    manifest = json.loads((TRAINED / "manifest.json").read_text("utf-8"))
    network = build("bert", manifest["network"]["options"], static=True)
    network.set_state_dict(load_parameters(TRAINED))
    specs = [TensorSpec(name, "int64", (-1, -1)) for name in ("input_ids", "attention_mask")]
    save_program(network, inputs=specs, directory=tmp_path, store="float16")
    for name in ("inference.json", "inference.pdiparams"):
        assert (tmp_path / name).read_bytes() == (TRAINED / name).read_bytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_act": "gelu_new"}, "hidden_act is 'gelu_new'"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"model_type": "roberta"}, "model_type is 'roberta'"),
        ({"num_attention_heads": 5}, "not divisible by 5 heads"),
        ({"id2label": {"0": "a", "2": "b"}}, "'1' is missing"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_configurations_that_are_not_plain_bert(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    from paddlepool.contracts.errors import ExportError

    config = json.loads((TINY / "config.json").read_text("utf-8")) | change
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    save_file({}, tmp_path / "model.safetensors")
    with pytest.raises(ExportError, match=message):
        read_bert_directory(tmp_path)
