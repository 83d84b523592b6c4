"""The published speed-ups and ours as bars, PNG or SVG by the file's suffix."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from claim_tables import ClaimTable

from app.comparison.plot import DEFAULT, annotate, open_figure, save_figure

PUBLISHED = "#c0c4cc"


def plot_claims(tables: Sequence[ClaimTable], file: Path) -> None:
    """Published speed-ups over the dynamic graph beside ours."""
    figure, axes = open_figure(len(tables), width=9.6 * len(tables), height=4.6)
    for axis, table in zip(axes, tables, strict=True):
        names = [row.label for row in table.rows]
        published = [row.published_ratio or 0.0 for row in table.rows]
        ours = [row.ratio for row in table.rows]
        places = list(range(len(names)))
        axis.barh([p + 0.2 for p in places], published, 0.38, color=PUBLISHED, label="published")
        axis.barh([p - 0.2 for p in places], ours, 0.38, color=DEFAULT, label="measured here")
        for place, row in zip(places, table.rows, strict=True):
            if row.published_ratio is not None:
                annotate(axis, row.published_ratio, place + 0.2, f"{row.published_ratio:.1f}×")
            annotate(axis, row.ratio, place - 0.2, f"{row.ratio:.1f}×")
        axis.set_yticks(places, names)
        axis.invert_yaxis()
        axis.set_xlim(0, 1.15 * max(*published, *ours))
        axis.set_xlabel("times faster than the dynamic graph")
        axis.set_title(table.title, fontsize=10)
        axis.legend(fontsize=8, loc="upper right")
    save_figure(figure, file)
