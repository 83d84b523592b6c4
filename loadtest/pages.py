"""Pages that benchmarks write: templates in Markdown, filled with figures, and their tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

TEMPLATES = Path(__file__).resolve().with_name("templates")


def filled(name: str, **values: object) -> str:
    """Fill the template of this name; its placeholders are those of `str.format`."""
    return (TEMPLATES / f"{name}.md.in").read_text("utf-8").format(**values)


def markdown_table(
    heads: Sequence[str], lines: Iterable[Sequence[str]], *, rule: str = "---"
) -> str:
    """Build a Markdown table; `rule` aligns all columns but the first."""
    rules = ["---", *(rule for _ in heads[1:])]
    return "\n".join(f"| {' | '.join(line)} |" for line in (heads, rules, *lines))
