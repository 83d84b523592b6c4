"""Pages that benchmarks write: templates in Markdown, filled with figures, and their tables."""

import argparse
import json
import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TEMPLATES = Path(__file__).resolve().with_name("templates")
REPEATED = re.compile(r"^%(\w+) (.*(?:\n  .*)*)", re.MULTILINE)


def filled(name: str, **values: Any) -> str:
    """Fill the template of this name; its placeholders are those of `str.format`.

    A line `%rows TEXT` is repeated with the placeholders of each row of the value `rows`. The lines
    below it that begin with two spaces belong to it.
    """

    def lines(match: re.Match[str]) -> str:
        text = "\n".join(match[2].format_map(row) for row in values[match[1]])
        return text.replace("{", "{{").replace("}", "}}")

    template = (TEMPLATES / f"{name}.md.in").read_text("utf-8")
    return REPEATED.sub(lines, template).format(**values)


def markdown_table(
    heads: Sequence[str], lines: Iterable[Sequence[str]], *, rule: str = "---"
) -> str:
    """Build a Markdown table; `rule` aligns all columns but the first."""
    rules = ["---", *(rule for _ in heads[1:])]
    return "\n".join(f"| {' | '.join(line)} |" for line in (heads, rules, *lines))


def page_parser(description: str | None) -> argparse.ArgumentParser:
    """Options of a script that measures and writes a page, or writes it from kept figures."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", type=Path, metavar="PAGE", help="measure, and write page and JSON")
    what.add_argument("--render", type=Path, metavar="PAGE", help="write it from its JSON")
    return parser


def write_page(
    args: argparse.Namespace,
    *,
    measure: Callable[[dict[str, Any]], dict[str, Any]],
    page: Callable[[dict[str, Any]], str],
) -> dict[str, Any]:
    """Write the page from the JSON beside it; with --write, `measure` makes the JSON first."""
    file: Path = args.write or args.render
    figures = file.with_suffix(".json")
    report = json.loads(figures.read_text("utf-8")) if figures.exists() else {}
    if args.write:
        report = measure(report)
        file.parent.mkdir(parents=True, exist_ok=True)
        figures.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", "utf-8")
    file.write_text(page(report), "utf-8")
    return report


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; `values` returns the figures of one server, or a text.

    `best` is None if there is no best server: each has another load, or any value may be right.
    """

    head: str
    values: Callable[[Any], Sequence[float | None] | str]
    unit: str = ""
    factor: float = 1.0
    best: Callable[[Iterable[float]], float] | None = min

    def cell(self, measured: Any) -> tuple[float, str]:
        """The median, and a text with the lowest and highest figure; None counts as infinite."""
        if isinstance(values := self.values(measured), str):
            return 0.0, values
        figures = [math.inf if value is None else value for value in values]
        low, middle, high = (
            digits(self.factor * figure)
            for figure in (min(figures), statistics.median(figures), max(figures))
        )
        text = middle if middle == "none" else f"{middle} {self.unit}".strip()
        return statistics.median(figures), text if low == high else f"{text} ({low}–{high})"


def ranked_table(columns: Sequence[Column], servers: Mapping[str, Any]) -> str:
    """Build a table with a line for each server; the best figure of a column is bold."""
    lines = {name: [name] for name in servers}
    for column in columns:
        cells = {name: column.cell(measured) for name, measured in servers.items()}
        competing = {value for name, (value, _) in cells.items() if not name.startswith("bare")}
        best = column.best(competing) if column.best and len(competing) > 1 else None
        for name, (value, text) in cells.items():
            bold = value == best and not name.startswith("bare")
            lines[name].append(f"**{text}**" if bold else text)
    return markdown_table(["", *(column.head for column in columns)], lines.values())


def digits(value: float) -> str:
    """Three digits, and no exponent."""
    if math.isinf(value):
        return "none"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
