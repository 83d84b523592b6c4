"""The figures of one model as text for a terminal, Markdown for its card and values for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.quality.ports import Findings, Table, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """`fingerprint` is the sha256 that tells these weights from others; `limit` as in Source."""

    model: str
    version: int
    group: str
    fingerprint: str
    findings: Findings
    limit: int | None = None

    def as_text(self) -> str:
        lines = [f"{self.model}@{self.version}, {self.group}, sha256 {self.fingerprint[:12]}…"]
        if self.limit is not None:
            lines.append(
                f"QUICK LOOK at the first {self.limit} of each set: not this model's figures"
            )
        for table in self.findings.tables:
            lines += ["", table.title, *_aligned(_cells(table))]
        if self.findings.notes:
            lines += ["", *self.findings.notes]
        return "\n".join(lines)

    def as_markdown(self) -> str:
        """What stands in the card; the same figures on the same machine give the same bytes."""
        lines = [
            f"Version {self.version} (sha256 `{self.fingerprint[:12]}…`), "
            f"instance group `{self.group}`, printed by",
            "",
            "```sh",
            f"paddlepool models verify --quality {self.model}",
            "```",
        ]
        for table in self.findings.tables:
            head, *rows = _cells(table)
            lines += [
                "",
                f"{table.title}:",
                "",
                _row(head),
                "|---|" + "---:|" * len(table.columns),
                *map(_row, rows),
            ]
        if self.findings.notes:
            lines += ["", *(f"- {note}" for note in self.findings.notes)]
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "predictor": self.group,
            "sha256": self.fingerprint,
            "limit": self.limit,
            "figures": {
                table.key: {
                    name: dict(zip(table.columns, values, strict=True))
                    for name, values in table.rows
                }
                for table in self.findings.tables
            },
            "notes": list(self.findings.notes),
        }


def _cells(table: Table) -> list[tuple[str, ...]]:
    rows = [(name, *map(_word, values)) for name, values in table.rows]
    return [("", *table.columns), *rows]


def _word(value: Value) -> str:
    return str(value) if isinstance(value, int) else f"{value:.4f}"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            [row[0].ljust(widths[0])]
            + [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        )
        for row in rows
    ]
