"""Measures how well text is read, on pictures with known lines, for `models verify --quality`."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paddlepool.contracts.errors import ConfigError
from paddlepool.contracts.ports import ServedModelInfo
from paddlepool.evidence.quality.ports import Findings, Source, Table, Value, folder, read_bytes

OVERLAP = 0.5
"""Two boxes are of one line from this intersection over union on, as in ICDAR's competitions."""
COLUMNS = ("pictures", "lines", "lines found", "line precision", "found", "precision")


class Line(NamedTuple):
    """A line of text, and the upright rectangle around it: left, top, right, bottom."""

    text: str
    box: tuple[float, float, float, float]


class OcrQuality:
    """Measures how much of the text on known pages is read.

    The folder `ocr` of the data has `images/`, and JSON files that map names of pictures to lines:
    `{"a.jpg": [{"text": "…", "box": [x, y, x, y, x, y, x, y]}]}`. A box may also be four pairs.
    `samples` has the bytes of each picture by name.
    """

    def __init__(self, info: ServedModelInfo, source: Source) -> None:
        """Read the files. Raises ConfigError if data are missing or damaged."""
        del info
        root = folder(source.data / "ocr")
        files = sorted(root.glob("*.json"))
        if not files:
            raise ConfigError(f"{root} has no JSON file with the lines of its pictures")
        self._pages = {
            file.stem: dict(list(_read_pages(file).items())[: source.limit]) for file in files
        }
        names = sorted({name for pages in self._pages.values() for name in pages})
        self.samples: Mapping[str, bytes] = {
            name: read_bytes(root / "images" / name) for name in names
        }

    def measure(self, answers: Mapping[str, Any]) -> Findings:
        """Compare the answers to all samples with the known lines; return a row for each JSON file.

        `answers` has the result of OcrPipeline.answer_of() by the name of the sample.
        """
        read = {name: lines_of(entries) for name, entries in answers.items()}
        rows = [(stem, _figures(pages, read)) for stem, pages in self._pages.items()]
        table = Table(
            key="pages",
            title="Lines with a box that overlaps by half, and characters found, wherever they "
            "stand on the page; without case and spaces",
            columns=COLUMNS,
            rows=tuple(rows),
        )
        return Findings(tables=(table,))


def _figures(
    pages: Mapping[str, Sequence[Line]], read: Mapping[str, Sequence[Line]]
) -> tuple[Value, ...]:
    """Return the values of COLUMNS for the known lines of `pages` and the lines `read`, by name.

    A share is 1 if its denominator is 0.
    """
    lines = right = own_lines = known = found = own = 0
    for name, expected in pages.items():
        lines, own_lines = lines + len(expected), own_lines + len(read[name])
        right += _pairs(expected, read[name])
        wanted, received = (
            characters(line.text for line in page) for page in (expected, read[name])
        )
        known, own = known + wanted.total(), own + received.total()
        found += (wanted & received).total()
    shares = (right, lines), (right, own_lines), (found, known), (found, own)
    return len(pages), lines, *(part / whole if whole else 1.0 for part, whole in shares)


def _pairs(expected: Sequence[Line], read: Sequence[Line]) -> int:
    """Return the number of pairs of an expected line and a read line that overlap enough (OVERLAP).

    A line is in one pair at most. Those that overlap most are paired first.
    """
    if not expected or not read:
        return 0
    overlaps = _overlaps(*(np.array([line.box for line in lines]) for lines in (expected, read)))
    count = 0
    while overlaps.max() >= OVERLAP:
        row, column = divmod(int(overlaps.argmax()), overlaps.shape[1])
        overlaps[row], overlaps[:, column] = 0, 0
        count += 1
    return count


def _overlaps(first: NDArray[Any], second: NDArray[Any]) -> NDArray[np.float64]:
    """Return the intersection over union (n, m) of rectangles (n, 4) with rectangles (m, 4)."""
    low = np.maximum(first[:, None, :2], second[None, :, :2])
    high = np.minimum(first[:, None, 2:], second[None, :, 2:])
    common = np.clip(high - low, 0, None).prod(axis=2)
    areas = [(boxes[:, 2:] - boxes[:, :2]).prod(axis=1) for boxes in (first, second)]
    overlaps: NDArray[np.float64] = common / np.maximum(
        areas[0][:, None] + areas[1][None] - common, 1e-9
    )
    return overlaps


def characters(texts: Iterable[str]) -> Counter[str]:
    """Count each character of all texts, in lower case and without white space."""
    return Counter("".join("".join(text.split()) for text in texts).lower())


def lines_of(entries: Sequence[Mapping[str, Any]]) -> list[Line]:
    """Convert each entry to a Line.

    An entry has `text` and `box`, the corners: [x, y] pairs, or a flat list x, y, x, y, … Raises
    ValueError, TypeError or KeyError for another entry.
    """
    lines = []
    for entry in entries:
        corners = np.array(entry["box"], np.float64).reshape(-1, 2)
        (left, top), (right, bottom) = corners.min(axis=0).tolist(), corners.max(axis=0).tolist()
        lines.append(Line(str(entry["text"]), (left, top, right, bottom)))
    return lines


def _read_pages(file: Path) -> dict[str, list[Line]]:
    try:
        pages = json.loads(read_bytes(file))
        return {name: lines_of(pages[name]) for name in sorted(pages)}
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise ConfigError(
            f"{file} must map names of pictures to lines with text and box"
        ) from error
