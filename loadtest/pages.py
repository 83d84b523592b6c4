"""Pages that benchmarks write: templates in Markdown, filled with figures, and their tables."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

TEMPLATES = Path(__file__).resolve().with_name("templates")
REPEATED = re.compile(r"^%(\w+) (.*(?:\n  .*)*)", re.MULTILINE)


def filled(name: str, **values: Any) -> str:
    """Fill the template of this name; its placeholders are those of `str.format`.

    A line `%rows TEXT` is repeated with the placeholders of each row of the value `rows`. The lines
    below it that begin with two spaces belong to it.
    """

    def lines(found: re.Match[str]) -> str:
        text = "\n".join(found[2].format_map(row) for row in values[found[1]])
        return text.replace("{", "{{").replace("}", "}}")

    template = (TEMPLATES / f"{name}.md.in").read_text("utf-8")
    return REPEATED.sub(lines, template).format(**values)


def markdown_table(
    heads: Sequence[str], lines: Iterable[Sequence[str]], *, rule: str = "---"
) -> str:
    """Build a Markdown table; `rule` aligns all columns but the first."""
    rules = ["---", *(rule for _ in heads[1:])]
    return "\n".join(f"| {' | '.join(line)} |" for line in (heads, rules, *lines))
