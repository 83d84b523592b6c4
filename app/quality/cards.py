"""Writes measured figures into a model card between two markers, and compares them with it.

Each version has figures and markers of its own: a card may tell of a preview and what follows it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from app.contracts.errors import ConfigError
from app.quality.report import Report

CARD = "MODEL_CARD.md"
HEADING = "## Measured quality"
BEGIN = "<!-- written by paddlepool models verify --quality --write-cards; do not edit -->"
END = "<!-- end of the measured figures -->"

TOLERANCE = 0.005
"""Another processor rounds differently, and a text on the border changes its label. Counts of
items must be equal."""

_MARKER = re.compile(f"{re.escape(BEGIN)}|{re.escape(END)}")
_BLOCK = re.compile(f"{re.escape(BEGIN)}\n(.*?){re.escape(END)}", re.DOTALL)
_NUMBER = re.compile(r"(?<![\w.])(\d+\.\d+)(?![\w.])")


@dataclass(frozen=True, slots=True)
class Difference:
    """How a card differs from a report; `wrong` where it has figures, and others."""

    sentence: str
    wrong: bool = True


def read_card(path: Path) -> str:
    """The card's text. Raises ConfigError when it is absent or its markers do not pair."""
    label = f"{path.parent.name}/{path.name}"
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{label} cannot be read; the figures are written into an existing card"
        ) from error
    found = (text.count(BEGIN), text.count(END))
    if _MARKER.findall(text) != [BEGIN, END] * found[0]:
        raise ConfigError(f"{label} has {found[0]} begin and {found[1]} end markers of the figures")
    return text


def write_card(path: Path, report: Report) -> None:
    """Put the figures in place of the last ones of this version, or after those of the others.

    Where the card has no markers yet they go below its heading "Measured quality", and that goes
    to the end where it is absent. Raises ConfigError like read_card, and for a quick look.
    """
    if report.limit is not None:
        raise ConfigError("the figures of a quick look (--limit) do not belong in a card")
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
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(text, "utf-8")
    temporary.replace(path)


def compare_card(path: Path, report: Report) -> Difference | None:
    """How the card's figures differ from the report's, or None where they agree.

    Fractions may differ by TOLERANCE, and the card may hold more: data may be absent here.
    Raises ConfigError like read_card.
    """
    text = read_card(path)
    own = _block_of(text, report.version)
    if own is None:
        return Difference(
            f"it has no figures of version {report.version}; --write-cards writes them", wrong=False
        )
    written = _figures(own[1])
    for line in _figures(report.as_markdown()):
        if not any(_agree(line, theirs) for theirs in written):
            alike = [theirs for theirs in written if _words(theirs) == _words(line)]
            says = f"it says {alike[0]!r}" if alike else "it says nothing of the kind"
            return Difference(f"{says}, measured: {line!r}")
    return None


def _block_of(text: str, version: int) -> re.Match[str] | None:
    blocks = _BLOCK.finditer(text)
    return next((each for each in blocks if each[1].startswith(f"Version {version} ")), None)


def _figures(block: str) -> list[str]:
    """What must agree: the line that names version and weights, and the tables."""
    return [line for line in block.splitlines() if line.startswith(("Version", "|"))]


def _words(line: str) -> list[str]:
    return _NUMBER.split(line)[::2]


def _agree(ours: str, theirs: str) -> bool:
    pairs = zip(_NUMBER.findall(ours), _NUMBER.findall(theirs), strict=False)
    return _words(ours) == _words(theirs) and all(
        abs(float(a) - float(b)) <= TOLERANCE for a, b in pairs
    )
