"""The published tables: what is compared, what is scaled, and the page that shows it."""

import hashlib
from pathlib import Path

import pytest
from claim_tables import (
    Backends,
    ClaimRow,
    ClaimTable,
    beaten,
    measure_u2netp,
)
from claims_page import page, plot_claims

from app.comparison.run import Plan, compare
from app.contracts.tensors import Tensors
from app.repository.layout import ModelFiles, ModelRepository
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


def with_int8(root: Path, *, backend: str) -> ModelFiles:
    """A version whose configuration names a group of its int8 program."""
    config = write_double(root) / "config.toml"
    group = f'[[instance_group]]\nname = "i8"\nbackend = "{backend}"\nprogram = "int8"\n'
    group += "budget = { agreement = 0.9 }\n"
    config.write_text(config.read_text("utf-8") + group + 'start = "on_demand"\n', "utf-8")
    return ModelRepository(root).read("double", 1)


def backends_of(factory: FakeFactory) -> Backends:
    """With a task by whose measure all answers mean the same."""

    def same(_found: Tensors, _expected: Tensors) -> float:
        return 1.0

    return Backends(served=factory, tuned=FakeFactory(), agreement_of=lambda _info: same)


def test_each_published_row_is_measured(tmp_path: Path) -> None:
    files = with_int8(tmp_path, backend="openvino")
    backends = backends_of(FakeFactory())
    found = measure_u2netp(files, backends, requests=3, cores=2, tick=lambda: None)
    assert [row.published_seconds for row in found.rows if row.published_seconds] == [
        2.1827,
        1.9110,
        1.8756,
        0.5750,
    ]
    assert found.rows[-1].label.startswith("all cores: Paddlepool")
    [lower] = [row for row in found.rows if row.label == "int8 program, OpenVINO"]
    assert lower.published_seconds is None


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
