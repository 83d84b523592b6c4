"""The quality of reading text: lines by their boxes, characters wherever they stand."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from paddlepool.contracts.errors import ConfigError
from paddlepool.contracts.ports import ServedModelInfo
from paddlepool.evidence.quality.ports import Source
from paddlepool.evidence.quality.run import measure_composed
from paddlepool.models.repository.config import ModelConfig
from paddlepool.models.repository.layout import ComposedFiles
from paddlepool.models.repository.manifest import ComposedManifest
from paddlepool.tasks.ocr.evaluation import COLUMNS, OcrQuality

INFO = Mock(spec=ServedModelInfo)


def line(text: str, left: int, top: int, right: int, bottom: int) -> dict[str, Any]:
    return {"text": text, "box": [left, top, right, top, right, bottom, left, bottom]}


TRUTH = {
    "a.png": [line("Total 9.00", 0, 0, 100, 10), line("Thanks", 0, 20, 60, 30)],
    "blank.png": [],
}


def write(root: Path, **files: object) -> Source:
    (root / "ocr" / "images").mkdir(parents=True)
    for name, content in files.items():
        (root / "ocr" / f"{name}.json").write_text(json.dumps(content), "utf-8")
    for name in TRUTH:
        (root / "ocr" / "images" / name).write_bytes(name.encode())
    return Source(data=root)


def figures(quality: OcrQuality, answers: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    [table] = quality.measure(answers).tables
    return {name: dict(zip(COLUMNS, values, strict=True)) for name, values in table.rows}


def test_lines_and_characters_are_counted(tmp_path: Path) -> None:
    quality = OcrQuality(INFO, write(tmp_path, truth=TRUTH))
    assert quality.samples == {"a.png": b"a.png", "blank.png": b"blank.png"}
    perfect = {"pictures": 2, "lines": 2} | dict.fromkeys(COLUMNS[2:], 1.0)
    assert figures(quality, TRUTH) == {"truth": perfect}
    read = {
        # A line beside the first one, which has a partner already; the other line is far away.
        "a.png": [
            line("total9.0", 0, 0, 90, 10),
            line("x", 0, 0, 80, 9),
            line("thanks", 0, 40, 60, 50),
        ],
        "blank.png": [line("xxxxxx", 0, 0, 9, 9)],
    }
    found = figures(quality, read)["truth"]
    assert (found["lines found"], found["line precision"]) == (1 / 2, 1 / 4)
    assert (found["found"], found["precision"]) == (14 / 15, 14 / 21)


def test_a_box_may_be_four_pairs(tmp_path: Path) -> None:
    pairs = [[5, 0], [105, 2], [105, 12], [5, 10]]
    read = {"a.png": [TRUTH["a.png"][1], {"text": "Total 9.00", "box": pairs}], "blank.png": []}
    found = figures(OcrQuality(INFO, write(tmp_path, truth=TRUTH)), read)["truth"]
    assert (found["lines found"], found["found"]) == (1.0, 1.0)


def test_each_file_is_a_row_and_the_limit_holds_for_each(tmp_path: Path) -> None:
    source = write(tmp_path, truth=TRUTH, reference={"blank.png": []})
    quality = OcrQuality(INFO, Source(data=source.data, limit=1))
    assert list(quality.samples) == ["a.png", "blank.png"]
    assert [row["pictures"] for row in figures(quality, TRUTH).values()] == [1, 1]


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({}, "no JSON file"),
        ({"truth": {"gone.png": []}}, r"gone\.png"),
        ({"truth": {"a.png": [{"text": "no box"}]}}, r"truth\.json must map"),
        ({"truth": [1]}, r"truth\.json must map"),
    ],
)
def test_missing_and_damaged_data_are_named(
    tmp_path: Path, files: dict[str, object], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        OcrQuality(INFO, write(tmp_path, **files))


def test_other_groups_are_measured_beside_the_default_ones(tmp_path: Path) -> None:
    files = ComposedFiles(
        name="ocr",
        version=1,
        directory=tmp_path,
        config=ModelConfig(pipeline="ocr", parts={"detect": "d"}),
        manifest=ComposedManifest(files={}, weights={}, built_with={}, sample="s", answer="a"),
    )
    quality = OcrQuality(INFO, write(tmp_path, truth=TRUTH))
    nothing: dict[str, Any] = {name: [] for name in TRUTH}
    report = measure_composed(
        files,
        quality,
        lambda group: TRUTH if group is None else nothing,
        base="detect:one",
        group="detect:other",
    )
    assert report.group == "detect:other"
    own, difference = (dict(table.rows)["truth"] for table in report.findings.tables)
    assert own == (2, 2, 0.0, 1.0, 0.0, 1.0)
    assert difference == (2, 2, -1.0, 0.0, -1.0, 0.0)
