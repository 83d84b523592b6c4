"""The published tables: what is compared, what is scaled, and the page that shows it."""

import hashlib
from pathlib import Path

import pytest
from claim_tables import (
    ClaimRow,
    ClaimTable,
    beaten,
)
from claims_page import page, plot_claims

from app.comparison.run import Plan, compare
from app.repository.layout import ModelRepository
from tests.engine.fakes import FakeFactory, write_double


def table(*ratios: tuple[str, float, float | None]) -> ClaimTable:
    return ClaimTable(
        title="A network",
        unit="seconds a picture",
        requests=4,
        rows=tuple(
            ClaimRow(
                label=label,
                threads="1",
                seconds=2 / ratio,
                ratio=ratio,
                published_seconds=None if published is None else 3 / published,
                published_ratio=published,
            )
            for label, ratio, published in ratios
        ),
        refused={"bf16": "no fast bfloat16"},
    )


def test_a_published_ratio_is_beaten_by_any_row_that_measures_it_again() -> None:
    """Padded texts may stay behind where buckets are ahead; the dynamic graph claims nothing."""
    found = table(
        ("dynamic", 1.0, 1.0), ("padded", 2.4, 3.8), ("buckets", 5.0, 3.8), ("slow", 1.1, 1.2)
    )
    assert beaten(found) == {"buckets": True, "slow": False}


@pytest.mark.slow
def test_the_page_holds_tables_plots_and_refusals(tmp_path: Path) -> None:
    """Published beside measured, ahead or not; then each model's groups with their reasons."""
    found = table(("dynamic", 1.0, 1.0), ("ours", 5.0, 3.8))
    plot_claims([found], tmp_path / "claims.svg")
    write_double(tmp_path)
    compared = compare(
        Plan(files=ModelRepository(tmp_path).read("double", 1), requests=9, concurrent=False),
        open_predictor=FakeFactory(),
        comparison_of=lambda info: None,
    )
    text = page(
        command="loadtest/claims.py --docs docs",
        machine="a processor, 2 cores",
        tables=[(found, "images/claims.svg")],
        comparisons=[(compared, "images/double.svg")],
        lengths="7, 128",
        padded=128,
    )
    assert "| ours | 1 | 0.789 s | 3.80 | 0.400 s | 5.00 | yes |" in text
    assert "bf16: refused: no fast bfloat16" in text
    assert "(images/claims.svg)" in text
    assert "ours" in (tmp_path / "claims.svg").read_text("utf-8")
    weights = hashlib.sha256((tmp_path / "double/1/inference.pdiparams").read_bytes()).hexdigest()
    assert f"## double, version 1, weights {weights[:8]}\n" in text
    assert "| main (default) | 1 |" in text
    assert "- main: it is what the others are compared with" in text
    assert "Thread budgets are equal" in text
