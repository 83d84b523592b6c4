"""Measured figures in model cards: where they are written, and when they are stale."""

from dataclasses import replace
from pathlib import Path

import pytest

from paddlepool.contracts.errors import ConfigError
from paddlepool.evidence.quality.ports import Findings, Table
from paddlepool.evidence.quality.report import (
    BEGIN,
    END,
    HEADING,
    Report,
    compare_card,
    read_card,
    write_card,
)
from paddlepool.making.export.release import U2NETP_RELEASE
from paddlepool.models.repository.manifest import read_manifest

REPOSITORY = Path(__file__).parents[3] / "model_repo"


def report(accuracy: float = 0.9, *, texts: int = 10, limit: int | None = None) -> Report:
    table = Table(
        key="eval",
        title="Eval",
        columns=("texts", "accuracy"),
        rows=(("usual", (texts, accuracy)),),
    )
    return Report(
        model="toy",
        version=1,
        group="onednn",
        fingerprint="0123456789abcdef",
        findings=Findings(tables=(table,), notes=("sad taken for fear",)),
        limit=limit,
    )


@pytest.fixture
def card(tmp_path: Path) -> Path:
    path = tmp_path / "toy" / "MODEL_CARD.md"
    path.parent.mkdir()
    path.write_text("# toy\n\nAbout it.\n", "utf-8")
    return path


def test_figures_go_to_the_end_of_a_card_without_their_heading(card: Path) -> None:
    """The rest of the card is untouched, and the table is there to four digits."""
    write_card(card, report())
    text = card.read_text("utf-8")
    assert text.startswith(f"# toy\n\nAbout it.\n\n{HEADING}\n\n{BEGIN}\n")
    assert "| usual | 10 | 0.9000 |" in text
    assert "- sad taken for fear" in text
    assert text.endswith(f"{END}\n")


def test_each_version_has_figures_of_its_own(card: Path) -> None:
    preview, official = report(), replace(report(0.95), version=2)
    write_card(card, preview)
    clause, wrong = compare_card(card, official)
    assert not wrong
    assert "no figures of version 2" in clause
    write_card(card, official)
    write_card(card, replace(preview, fingerprint="fedcba9876543210"))
    assert [
        line for line in card.read_text("utf-8").splitlines() if line.startswith("Version")
    ] == [
        "Version 1 (sha256 `fedcba987654…`), instance group `onednn`, printed by",
        "Version 2 (sha256 `0123456789ab…`), instance group `onednn`, printed by",
    ]
    assert compare_card(card, official) == ("the figures are the same", False)
    assert compare_card(card, replace(official, findings=preview.findings))[1]


@pytest.mark.parametrize(
    ("measured", "fault"),
    [
        (report(), None),
        (report(0.904), None),
        (report(0.91), "it says '| usual | 10 | 0.9000 |', measured: '| usual | 10 | 0.9100 |'"),
        (report(texts=11), "measured: '| usual | 11 | 0.9000 |'"),
        (replace(report(), fingerprint="fedcba9876543210"), "measured: 'Version 1 (sha256 `fedc"),
    ],
    ids=["same", "rounding", "other figure", "other count", "other weights"],
)
def test_a_card_with_other_figures_is_found(
    card: Path, measured: Report, fault: str | None
) -> None:
    """Fractions may differ by 0.005; counts and the version's fingerprint must be equal."""
    write_card(card, report())
    clause, wrong = compare_card(card, measured)
    assert wrong == (fault is not None)
    assert (fault or "the figures are the same") in clause


def test_a_quick_look_is_not_written(card: Path) -> None:
    """Figures of a few items would pass for the model's."""
    with pytest.raises(ConfigError, match="--limit"):
        write_card(card, report(limit=5))
    assert BEGIN not in card.read_text("utf-8")


@pytest.mark.parametrize("text", [BEGIN, END, f"{END}\n{BEGIN}", f"{BEGIN}{BEGIN}{END}{END}"])
def test_broken_markers_are_refused(card: Path, text: str) -> None:
    """Otherwise a part of the card would be lost."""
    card.write_text(text, "utf-8")
    with pytest.raises(ConfigError, match="begin and"):
        write_card(card, report())
    assert card.read_text("utf-8") == text


@pytest.mark.parametrize("model", sorted(path.parent.name for path in REPOSITORY.glob("*/1")))
def test_committed_figures_are_of_the_committed_weights(model: str) -> None:
    """A new export without `models verify --quality --write-cards` leaves a stale card behind."""
    path = REPOSITORY / model / "MODEL_CARD.md"
    committed = read_manifest(path.parent / "1")
    if not path.exists() or BEGIN not in (text := read_card(path)):
        pytest.skip(f"NOT CHECKED: the card of {model} has no measured figures yet")
    assert f"\nVersion 1 (sha256 `{committed.sha256()[:12]}…`)" in text


def test_the_figures_of_the_official_weights_are_of_the_release() -> None:
    text = read_card(REPOSITORY / "u2netp" / "MODEL_CARD.md")
    assert f"\nVersion 2 (sha256 `{U2NETP_RELEASE.sha256[:12]}…`)" in text
