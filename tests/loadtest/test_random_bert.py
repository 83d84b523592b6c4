"""The BERT to measure with: random weights of a given shape, published like any other model."""

from __future__ import annotations

from pathlib import Path

import claims
import pytest
import random_bert
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


def test_the_random_bert_is_made_once_for_each_revision_of_the_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that an older network was exported to is not compared with today's dynamic graph."""
    made: list[Path] = []

    def export(root: Path) -> None:
        made.append(root)
        version = root / "bert-base-random" / "1"
        version.mkdir(parents=True)
        (version / "manifest.json").touch()

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(random_bert, "export_random_bert", export)
    source = tmp_path / "bert.py"
    source.write_text("first")
    monkeypatch.setattr(claims, "BERT_SOURCE", source)
    first = claims.random_bert()
    assert claims.random_bert() == first
    source.write_text("second")
    second = claims.random_bert()
    assert made == [first, second]
    assert all(each.is_relative_to(tmp_path / "cache") for each in made)
