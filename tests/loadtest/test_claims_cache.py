"""What loadtest/claims.py keeps in the cache."""

from __future__ import annotations

from pathlib import Path

import claims
import pytest
import random_bert

pytestmark = pytest.mark.paddle


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
