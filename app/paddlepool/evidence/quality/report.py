"""The figures of one model version: as text, as JSON, and between two markers of its model card."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paddlepool.contracts.errors import ConfigError
from paddlepool.evidence.comparison.result import align_columns
from paddlepool.evidence.quality.ports import Findings, Table, Value
from paddlepool.models.repository.files import write_atomically


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Figures of one instance group, or of a composed model with one group for each part.

    `fingerprint` is the sha256 of the version or, for an official release, of the released file.
    """

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
            lines += ["", table.title, align_columns(_cells(table))]
        if self.findings.notes:
            lines += ["", *self.findings.notes]
        return "\n".join(lines)

    def as_markdown(self) -> str:
        """Return the text for the model card; equal figures give equal text."""
        lines = [
            f"Version {self.version} (sha256 `{self.fingerprint[:12]}…`), "
            f"instance group `{self.group}`, printed by"
        ]
        lines += ["", "```sh", f"paddlepool models verify --quality {self.model}", "```"]
        for table in self.findings.tables:
            head, *rows = _cells(table)
            rule = "|---|" + "---:|" * len(table.columns)
            lines += ["", f"{table.title}:", "", _row(head), rule, *map(_row, rows)]
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


CARD = "MODEL_CARD.md"
HEADING = "## Measured quality"
BEGIN = "<!-- written by paddlepool models verify --quality --write-cards; do not edit -->"
END = "<!-- end of the measured figures -->"

TOLERANCE = 0.005
"""Allowed difference of numbers with a decimal point: another processor rounds differently."""

_MARKER = re.compile(f"{re.escape(BEGIN)}|{re.escape(END)}")
_BLOCK = re.compile(f"{re.escape(BEGIN)}\n(.*?){re.escape(END)}", re.DOTALL)
_NUMBER = re.compile(r"(?<![\w.])(\d+\.\d+)(?![\w.])")


def read_card(path: Path) -> str:
    """Return the card's text. Raises ConfigError if it is unreadable or its markers do not pair."""
    label = f"{path.parent.name}/{path.name}"
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{label} cannot be read; figures are written only to an existing card"
        ) from error
    counts = (text.count(BEGIN), text.count(END))
    if _MARKER.findall(text) != [BEGIN, END] * counts[0]:
        raise ConfigError(
            f"{label} has {counts[0]} begin and {counts[1]} end markers of the figures"
        )
    return text


def write_card(path: Path, report: Report) -> None:
    """Write the report's figures into the card, in place of earlier figures of this version.

    If the card has none, the new figures follow the last ones of another version, or else the
    heading "Measured quality", which is added if missing. Raises ConfigError as read_card() does,
    and also if the report has a `limit`; and OSError if the card cannot be written.
    """
    if report.limit is not None:
        raise ConfigError("figures of a part of the data (--limit) do not belong in a card")
    text = read_card(path)
    block = f"{BEGIN}\n{report.as_markdown()}\n{END}"
    if own := _block_of(text, report.version):
        text = text[: own.start()] + block + text[own.end() :]
    elif others := list(_BLOCK.finditer(text)):
        text = f"{text[: others[-1].end()]}\n\n{block}{text[others[-1].end() :]}"
    elif heading := re.search(rf"^{HEADING}[ \t]*$", text, re.MULTILINE):
        after = text[heading.end() :].lstrip("\n")
        text = f"{text[: heading.end()].rstrip()}\n\n{block}\n" + (f"\n{after}" if after else "")
    else:
        text = f"{text.rstrip()}\n\n{HEADING}\n\n{block}\n"
    write_atomically(path, text.encode())


def compare_card(path: Path, report: Report) -> tuple[str, bool]:
    """Return a clause that compares the card's figures with the report, and whether they are wrong.

    Figures that only the card has are not wrong: this machine may lack some data. Raises
    ConfigError as read_card() does.
    """
    own = _block_of(read_card(path), report.version)
    if own is None:
        return f"it has no figures of version {report.version}; --write-cards writes them", False
    written = _figures(own[1])
    for line in _figures(report.as_markdown()):
        if not any(_agree(line, other) for other in written):
            alike = [other for other in written if _words(other) == _words(line)]
            says = f"it says {alike[0]!r}" if alike else "it says nothing of the kind"
            return f"{says}, measured: {line!r}", True
    return "the figures are the same", False


def _block_of(text: str, version: int) -> re.Match[str] | None:
    blocks = _BLOCK.finditer(text)
    return next((block for block in blocks if block[1].startswith(f"Version {version} ")), None)


def _figures(block: str) -> list[str]:
    """Return the lines to compare: the one with the version and its digest, and the tables."""
    return [line for line in block.split("\n") if line.startswith(("Version", "|"))]


def _words(line: str) -> list[str]:
    return _NUMBER.split(line)[::2]


def _agree(first: str, second: str) -> bool:
    pairs = zip(_NUMBER.findall(first), _NUMBER.findall(second), strict=False)
    return _words(first) == _words(second) and all(
        abs(float(a) - float(b)) <= TOLERANCE for a, b in pairs
    )
