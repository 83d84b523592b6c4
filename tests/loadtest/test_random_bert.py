"""The BERT to measure with: random weights of a given shape, published like any other model."""

from __future__ import annotations

from pathlib import Path

import pytest
from random_bert import export_random_bert

from app.networks.bert import BertConfig
from app.repository.layout import ModelRepository

pytestmark = pytest.mark.paddle

SMALL = BertConfig(
    vocab_size=50,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=64,
    num_labels=6,
)


def test_it_is_published_and_the_same_every_time(tmp_path: Path) -> None:
    """Weights are drawn from a fixed seed; the manifest says that they are random."""
    first = export_random_bert(tmp_path / "a", SMALL, name="small")
    second = export_random_bert(tmp_path / "b", SMALL, name="small")
    files = ModelRepository(tmp_path / "a").read("small", 1)
    assert files.manifest.weights["origin"] == "random"
    assert [spec.name for spec in files.manifest.inputs] == ["input_ids", "attention_mask"]
    assert (first / "inference.pdiparams").read_bytes() == (
        second / "inference.pdiparams"
    ).read_bytes()
